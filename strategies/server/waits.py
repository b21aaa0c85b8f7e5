"""Sites that are to be asked again: their hospital has not agreed to the run yet, or has paused."""

from collections.abc import Callable, Iterable

FIRST_S, LONGEST_S = 1.0, 15.0  # between two questions


class Waits:
    """Who is waited for and why; ``tell`` is given {site: reason} whenever that changes.

    A site that was waited for in vain, for all of a contact's time, is not waited for again until it has answered.
    """

    def __init__(self, tell: Callable[[dict[str, str]], None], clock: Callable[[], float]) -> None:
        self.tell, self.clock = tell, clock
        self.reasons: dict[str, str] = {}
        self._asked: dict[str, int] = {}
        self._in_vain: set[str] = set()

    def again(self, site: str) -> float | None:
        """When a site that says it waits is to be asked again; None where it has been waited for long enough."""
        if site in self._in_vain:
            return None
        self._asked[site] = self._asked.get(site, 0) + 1
        return self.clock() + min(FIRST_S * 2.0 ** (self._asked[site] - 1), LONGEST_S)

    def note(self, site: str, reason: str) -> bool:
        """Note why a site waits; False where that is known."""
        if self.reasons.get(site) == reason:
            return False
        self.reasons[site] = reason
        self.tell(dict(self.reasons))
        return True

    def over(self, site: str) -> None:
        """It has answered."""
        self._asked.pop(site, None)
        self._in_vain.discard(site)
        if self.reasons.pop(site, None) is not None:
            self.tell(dict(self.reasons))

    def give_up(self, sites: Iterable[str]) -> None:
        """The contact's time is over."""
        self._in_vain |= set(sites)
