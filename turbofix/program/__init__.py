"""Source texts in, the model of the training program out."""
