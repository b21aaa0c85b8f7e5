"""Programs to read and to run; each says how in its first lines."""
