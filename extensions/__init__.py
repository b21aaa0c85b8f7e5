"""What the core never imports: a folder is an extension, found by its entry points (:mod:`fedsmall.entry_points`)."""
