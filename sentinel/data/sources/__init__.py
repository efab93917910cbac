"""The formats of training data: where samples lie in a file, and what is in their bytes."""
