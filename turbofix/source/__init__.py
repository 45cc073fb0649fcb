"""Bytes, text and tree: files, notebooks, configuration files, and places in them. It knows nothing of torch."""
