"""What it takes to carry a training of one process to several."""
