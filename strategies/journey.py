"""Who is where, by name: the sites that take part in a contact, and those to which travellers go after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsmall.plan import Method
from fedsmall.travel.journey import groups_of, taking_part
from fedsmall.travel.schedule import Action, Contact, handed_on, next_in, participants, spaced
from strategies.folds import SiteFolds


@dataclass(frozen=True)
class Journey:
    """Where the travellers of a chain go, as :mod:`fedsmall.travel.journey` has it: from seed, contact and names.

    ``fraction`` of the sites, drawn anew with ``seed``, takes part in a contact; ``folds`` are those of its routes,
    where it has such, and ``samples`` what each site has said of its own.
    """

    method: Method
    seed: int
    fraction: float
    folds: SiteFolds
    samples: Mapping[str, int]

    def participants(self, t: int, sites: Sequence[str], phase: int = 0) -> list[str]:
        """The sites that take part in the contact after round ``t`` of a phase, in name order."""
        if self.folds:
            return self.folds.participants(t)
        method, there = self.method.in_phase(phase), self._taking_part(phase, sites)
        if method.route == "cyclic":
            return spaced(there, method.travelling(len(there)))
        return participants(self.seed, t, there, self.fraction, method.models)

    def first_groups(self, drawn: Sequence[str], groups: int) -> list[int]:
        """The group, of so many ``groups``, of the traveller at each of the sites that take part first."""
        numbers = groups_of(self.method, len(drawn), groups)
        return list((self.folds.first_groups(drawn, numbers) if self.folds else numbers).tolist())

    def route(
        self, contact: Contact, following: Contact, groups: Mapping[str, int], sites: Sequence[str]
    ) -> dict[str, str]:
        """Where the travellers go after a contact of a phase to train for the ``following`` of the same phase.

        ``groups`` are theirs, by the sites where they are; ``sites`` are all there are. Empty where nobody moves.
        """
        open_to, method = self._taking_part(contact.phase, sites), self.method.in_phase(contact.phase)
        everyone = method.everyone(len(open_to))
        rests = contact.action is Action.AGGREGATE and everyone and not method.grouped
        if not contact.travels or rests:
            return {}
        here = sorted(groups)
        there = here if everyone else self.participants(following.due, sites, following.phase)
        if self.folds:
            return self.folds.handed_on(contact.t, groups, there)
        if method.route == "cyclic":
            return next_in(open_to, here)
        return handed_on(self.seed, contact.t, here, there)

    def _taking_part(self, phase: int, sites: Sequence[str]) -> list[str]:
        names = sorted(sites)
        samples = [self.samples.get(site, 0) for site in names]
        return [names[number] for number in taking_part(self.method, phase, len(names), samples)]
