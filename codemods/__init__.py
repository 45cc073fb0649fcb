"""The codemods that turbofix brings: one file each, found through the entry point group ``turbofix.codemods``."""
