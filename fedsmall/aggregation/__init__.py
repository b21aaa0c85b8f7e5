"""Many models into one, and what a server does with it."""
