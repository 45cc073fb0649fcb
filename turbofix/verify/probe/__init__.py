"""What runs inside the child, in the user's interpreter: it needs torch and the standard library, nothing else.

The folder is loaded by its path (see ``__main__``), so turbofix need not be installed there. ``__main__`` serves runs,
``run`` is one run of the script, ``neutral`` takes chance out of it, ``shorten`` takes length out of it,
``record`` watches it, ``lockstep`` writes down or compares tensors, ``coverage`` notes the lines that ran,
``cuda_on_cpu`` stands in for a missing GPU, ``speed`` measures. ``levels`` keeps the user's files safe by
``namespaces``, ``landlock`` and ``guard``; ``warden`` and ``processes`` see to the end, ``kernel`` calls Linux.
"""
