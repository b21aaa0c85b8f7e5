"""Which global models the sites of a run are known to have, so that models can go to them as changes of one.

A global model is known by the round after which it was made, 0 for the first. The last two count: a site that was
silent for longer is sent its model whole.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedsmall.codec.top import cut_one
from fedsmall.wire import Arrays


class Ground(NamedTuple):
    """What an order to a site builds on.

    ``base`` is the round of the global model from which the site's model is a difference, ``reference`` that model (-1
    and None where it goes in full). ``taken`` is the round of the site's last answer that was used, 0 for none.
    """

    base: int
    reference: Arrays | None
    taken: int


@dataclass
class Known:
    """The last two global models, as sites read them, and who has which.

    ``has`` is the round of each site's global model, by name; ``taken`` that of its last answer that was used.
    ``contacts`` counts those since the last global model was made.
    """

    models: dict[int, Arrays] = field(default_factory=dict)
    has: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    contacts: int = 0

    @property
    def now(self) -> int:
        """The round after which the last common model was made."""
        return max(self.models)

    def tell(self, model: Arrays, t: int, share: float) -> Arrays:
        """The broadcast form of a global ``model`` that was made after round ``t``, from now on the last.

        The first goes whole, of others a ``share`` of the numbers for each contact since the one before: as many as a
        model may have changed on its way.
        """
        sent = model
        if self.models:
            sent, _ = cut_one(model, self.models[self.now], {}, min(1.0, share * max(1, self.contacts)))
        self.models = dict(sorted((self.models | {t: dict(sent)}).items())[-2:])
        self.contacts = 0
        return sent

    def ground(self, site: str) -> Ground:
        """What an order to this site builds on."""
        base = self.has.get(site, -1)
        reference = self.models.get(base)
        return Ground(-1 if reference is None else base, reference, self.taken.get(site, 0))

    def answered(self, t: int, sent: Mapping[str, bool], good: Collection[str]) -> None:
        """Record the contact of round ``t``: ``sent`` says whether a site's order brought the global model.

        ``good`` are the sites whose answers are used; any other may have nothing.
        """
        if not self.models:
            return  # models go in other forms
        self.contacts += 1
        for site, common in sent.items():
            if site not in good:
                self.has.pop(site, None)
                continue
            self.taken[site] = t
            if common:
                self.has[site] = self.now
