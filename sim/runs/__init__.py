"""A scenario, its execution, and the folder it leaves."""
