"""How many cores there are to run on."""

import os


def cores() -> int:
    """How many cores this process may use: those of the machine, or fewer where it was given fewer."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1
