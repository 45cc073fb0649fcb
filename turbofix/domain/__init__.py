"""What a value can be while a program is executed abstractly, and the trace of what happened."""
