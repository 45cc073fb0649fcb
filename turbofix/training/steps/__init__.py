"""What a training step does: backward passes, updates, averages, gradients that nobody uses."""
