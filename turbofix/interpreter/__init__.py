"""Abstract execution of a program, in program order: it writes the trace."""
