"""What a training step takes on a GPU that is not here, from its own operations; nothing here imports torch.

``recording`` is the step as the probe wrote it down, ``cards`` what is known of the GPUs, ``clock`` how long an
operation takes there, ``updates`` an optimizer, ``compiled`` what torch.compile makes of a step, ``step`` the whole of
it, and ``causes`` what its time goes to.
"""
