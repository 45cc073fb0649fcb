"""The codemods one after another, many inputs, and other scripts that share a file."""
