"""Data sets and loaders: what they read, how much, how often, and what each batch costs."""
