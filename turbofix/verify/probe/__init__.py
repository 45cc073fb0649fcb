"""What runs inside the child, in the user's interpreter: it needs torch and the standard library, nothing else.

The folder is loaded by its path (see ``__main__``), so turbofix need not be installed there. ``__main__`` serves runs,
``run`` is one run of the script, ``neutral`` takes chance out of it, ``shorten`` takes length out of it,
``record`` watches it, ``lockstep`` writes down or compares tensors, ``coverage`` notes the lines that ran,
``cuda_on_cpu`` stands in for a missing GPU, ``landlock`` and ``guard`` keep the user's files safe, ``speed`` measures.
"""
