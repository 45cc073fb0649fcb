"""What is told without an edit: what is right already, what is overlooked, what torch has removed."""
