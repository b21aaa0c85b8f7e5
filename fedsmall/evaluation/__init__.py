"""What models are worth, and how sure one can be of it."""
