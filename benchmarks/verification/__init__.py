"""How often a verification errs: broken rewrites that pass, and good ones that fail."""
