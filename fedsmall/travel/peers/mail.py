"""Letters between sites over lines that lose some and bring others late: each is handed over once, however often it is
sent.

A sender keeps a letter and sends it again until it is acknowledged; acknowledgements get lost too. So a letter may come
twice, and a receiver remembers the numbers of those that it has had: it acknowledges them again and hands them over no
more. It need not remember for ever: every letter could say which is its sender's oldest that is still open, and what is
older comes no more. Source: the alternating-bit protocol (Bartlett, Scantlebury & Wilkinson 1969), with numbers.
"""

from typing import NamedTuple

import numpy as np

from fedsmall.randomness import rng_for

ACKNOWLEDGEMENT_BYTES = 16  # a sender's number and the letter's
ACKNOWLEDGED = 3  # times: one that gets lost costs a whole model more


class Delivered(NamedTuple):
    """Letters that have come for the first time: what they hold, of which kind it is, and to whom: (letters,) each."""

    what: np.ndarray
    kind: np.ndarray
    receiver: np.ndarray


class Mail:
    """The letters of all sites that are still open, in exchanges: each sends what is due and brings what arrives.

    ``sent`` counts letters by kind, ``acknowledged`` acknowledgements, each time that one was sent; both go on until
    somebody empties them. ``loss`` and ``delay`` are those of :class:`fedsmall.parts.Topology`.
    """

    def __init__(self, seed: int, loss: float = 0.0, delay: int = 0) -> None:
        self.seed, self.loss, self.delay = seed, loss, delay
        self.exchanges = 0
        self.sent, self.acknowledged = np.zeros(2, dtype=np.int64), 0
        self._numbers = 0
        self._open = np.zeros((5, 0), dtype=np.int64)  # number, receiver, what, kind, the exchange to send it in
        self._flying = np.zeros((3, 0), dtype=np.int64)  # number, the exchange in which it arrives, acknowledgement
        self._had = np.zeros(0, dtype=bool)  # by its receiver: letters from number _oldest on
        self._oldest = 0

    def post(self, receivers: np.ndarray, what: np.ndarray, kind: int) -> None:
        """Give up letters of a ``kind`` (0 or 1) for these ``receivers``; they leave with the next exchange."""
        numbers = self._numbers + np.arange(len(what))
        self._numbers += len(what)
        due = np.full(len(what), self.exchanges + 1)
        letters = np.array([numbers, receivers, what, np.full(len(what), kind), due], dtype=np.int64)
        self._open = np.concatenate([self._open, letters], axis=1)
        self._had = np.concatenate([self._had, np.zeros(len(what), dtype=bool)])

    def exchange(self) -> Delivered:
        """Send what is due, bring what arrives, acknowledge it; gives the letters that come for the first time."""
        self.exchanges += 1
        rng = rng_for(self.seed, "letters", self.exchanges)
        due = self._open[4] <= self.exchanges
        self.sent += np.bincount(self._open[3, due], minlength=2)
        self._open[4, due] = self.exchanges + 1 + 2 * self.delay  # no sooner, for the answer may be under way
        self._fly(rng, self._open[0, due], acknowledgement=False)
        came = self._landed(acknowledgement=False)
        came = came[self._had[came - self._oldest] | np.isin(came, self._open[0])]  # else they were withdrawn
        fresh = np.unique(came[~self._had[came - self._oldest]])
        self._had[fresh - self._oldest] = True
        self.acknowledged += ACKNOWLEDGED * len(came)
        self._fly(rng, np.repeat(came, ACKNOWLEDGED), acknowledgement=True)
        letters = self._open[:, np.searchsorted(self._open[0], fresh)]
        known = self._landed(acknowledgement=True)
        self._open = self._open[:, ~np.isin(self._open[0], known)]
        self._forget()
        return Delivered(letters[2], letters[3], letters[1])

    def withdraw(self, kind: int) -> None:
        """Send letters of a kind no more; those under way are not handed over."""
        self._open = self._open[:, self._open[3] != kind]

    def _fly(self, rng: np.random.Generator, numbers: np.ndarray, acknowledgement: bool) -> None:
        lasting = rng.random(len(numbers)) >= self.loss
        due = self.exchanges + rng.integers(0, self.delay + 1, len(numbers))
        flying = np.array([numbers, due, np.full(len(numbers), acknowledgement)], dtype=np.int64)[:, lasting]
        self._flying = np.concatenate([self._flying, flying], axis=1)

    def _landed(self, acknowledgement: bool) -> np.ndarray:
        """The numbers of what has arrived by now, which flies no more."""
        down = (self._flying[1] <= self.exchanges) & (self._flying[2] == acknowledgement)
        numbers: np.ndarray = self._flying[0, down]
        self._flying = self._flying[:, ~down]
        return numbers

    def _forget(self) -> None:
        """Forget of what nobody waits for an answer, and nothing is under way."""
        oldest = min(self._open[0].min(initial=self._numbers), self._flying[0].min(initial=self._numbers))
        self._had, self._oldest = self._had[oldest - self._oldest :], int(oldest)
