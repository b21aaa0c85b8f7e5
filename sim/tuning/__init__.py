"""The search for learning rates and other settings, on training sites alone."""
