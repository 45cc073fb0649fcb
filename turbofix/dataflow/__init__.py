"""General questions to the trace: uses, path conditions, provenance, effects."""
