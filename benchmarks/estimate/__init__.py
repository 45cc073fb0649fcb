"""Is the estimate right? Published measurements of networks and cards that its constants were not fitted on.

``python -m benchmarks.estimate record MEASURED TRACES`` writes down one step of each measured network (it needs timm
and its dependencies), ``fit MEASURED TRACES`` fits ``turbofix/estimate/constants.tsv``, ``score MEASURED TRACES``
prints the table of results. MEASURED is a folder with timm's published benchmark results, and NVIDIA's as
``nvidia-training.tsv``.
"""
