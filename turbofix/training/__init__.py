"""The facts of a training: source texts in, the model of the training program out."""
