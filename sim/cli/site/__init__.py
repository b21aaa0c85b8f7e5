"""``fedsmall site``: what a hospital runs."""
