"""Optimizers: what they hold, and what their fused kernels take."""
