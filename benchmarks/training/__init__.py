"""Ten naive trainings, each beside the same job tuned by hand, and the command that fills one table with both."""
