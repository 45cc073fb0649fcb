"""Measurements of turbofix on real programs; not part of the installed package."""
