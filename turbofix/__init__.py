"""turbofix: make a slow PyTorch training script fast, in a small diff, and prove by running that it learns the same."""

__version__ = "0.1.0"
