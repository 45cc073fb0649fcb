"""Text edits, located by LibCST: ranges of the text are edited, never a tree."""
