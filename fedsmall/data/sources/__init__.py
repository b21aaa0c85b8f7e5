"""Where samples come from: each module reads one kind of source into a :class:`fedsmall.data.sources.pool.Pool`."""
