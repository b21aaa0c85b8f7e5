"""Top-k with error feedback: only the largest changes of a model go, the rest waits for later.

A site adds its residual to a model that it has trained, sends the numbers that have moved most, and keeps the rest as
the next residual. The server does the same with a global model: its residual is how its own differs from the one that
sites have. Which that is, both remember: :class:`Known` at the server; at a site, by name, the last global model
("common"), the residuals of the last model that left ("left") and of the one before ("before", which counts again where
the server did not take the reply), and their rounds.

Source: Stich, Cordonnier & Jaggi 2018, "Sparsified SGD with memory", Algorithm 1, and Aji & Heafield 2017; both ways as
in Tang et al. 2019 (DoubleSqueeze). The k are of all arrays together (one threshold), not of each layer.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedsmall.codec.codes import CodecError, coded_names, flat, unflat
from fedsmall.wire import BASE, COMMON, MADE, ROUND, TAKEN, Arrays, first_of, join, split, stack_of_one


def cut(models: Arrays, received: Arrays, left: Arrays, share: float) -> tuple[Arrays, Arrays]:
    """What leaves of trained ``models`` {name: (models, ...)}, and their next residual, of same shapes.

    ``received`` are the models as they came, ``left`` the last residual (may be empty). Those numbers that then differ
    most from ``received`` leave, a ``share`` of all, rounded up; of equal ones the first. A model with a number that is
    not finite leaves whole, and its ``left`` stays.
    """
    model = first_of(models)
    if not (names := coded_names(model)):
        return models, {}
    rows = partial(flat, names=names, models=(len(models[names[0]]),))
    trained, start = rows(models), rows(received)  # (models, numbers)
    before = rows(left) if left else np.zeros_like(trained)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = trained + before
        moved = wanted - start
    sound = np.isfinite(moved).all(axis=1, keepdims=True)
    chosen = np.stack([largest(np.abs(row), share) for row in np.where(sound, moved, 0)])
    sent = np.where(sound, np.where(chosen, wanted, start), trained)
    after = np.where(sound, np.where(chosen, 0, moved), before)
    return models | unflat(sent, model, names), unflat(after, model, names)


def cut_one(model: Arrays, received: Arrays, left: Arrays, share: float) -> tuple[Arrays, Arrays]:
    """:func:`cut` for one model, without the leading axis."""
    sent, after = cut(stack_of_one(model), stack_of_one(received), stack_of_one(left), share)
    return first_of(sent), first_of(after)


def largest(sizes: np.ndarray, share: float) -> np.ndarray:
    """Which of the ``sizes`` (numbers,) are a ``share`` of them, rounded up, and the largest; of equals the first.

    Equal are those that agree in half of their digits: the last digit, which engines may have otherwise, must not
    choose.
    """
    digits, powers = np.frexp(sizes)
    sizes = np.ldexp(np.round(digits * 2.0 ** (np.finfo(sizes.dtype).nmant // 2)), powers)
    count = min(len(sizes), math.ceil(share * len(sizes) - 1e-9))  # 7% of 100 are 7, whatever is rounded
    if not count:
        return np.zeros(len(sizes), dtype=bool)
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    chosen: np.ndarray = sizes > least
    chosen[np.flatnonzero(sizes == least)[: count - int(chosen.sum())]] = True
    return chosen


def add_residual(models: Arrays, common: Mapping[str, np.ndarray], sent: Mapping[str, np.ndarray]) -> Arrays:
    """Models {name: (models, ...)} trained from the one that sites were ``sent``, as if from the ``common`` one."""
    moved = {name: models[name] + (common[name] - sent[name]) for name in coded_names(common)}
    return models | moved


LEFT, BEFORE, ROUNDS_OF = "left", "before", "rounds"
Config = Mapping[str, Any]


def base_of(memory: Arrays, config: Config) -> Arrays | None:
    """The global model that an order builds on; None where it needs none. CodecError where it is not here."""
    base = int(config.get(BASE, -1))
    if base < 0:
        return None
    made, _ = _rounds(memory)
    if base != made:
        raise CodecError("it builds on a common model that this site does not have")
    return split(memory, COMMON)


def cut_at_site(model: Arrays, received: Arrays, memory: Arrays, config: Config, share: float) -> tuple[Arrays, Arrays]:
    """A trained model as it leaves, and what is remembered then; ``received`` is the model as it came in the order."""
    made, last = _rounds(memory)
    taken = int(config.get(TAKEN, 0)) >= last
    before = split(memory, LEFT if taken else BEFORE)
    sent, left = cut_one(model, received, before, share)
    common = split(memory, COMMON)
    if config.get(COMMON) and MADE in config:
        common, made = received, int(config[MADE])
    rounds = {ROUNDS_OF: {"all": np.array([made, int(config[ROUND])], dtype=np.int64)}}
    return sent, join(**{COMMON: common, LEFT: left, BEFORE: before}, **rounds)


def _rounds(memory: Arrays) -> tuple[int, int]:
    """The round of the global model that a site has, and of its last model that left; -1 for none."""
    made, last = memory.get(f"{ROUNDS_OF}/all", np.array([-1, -1]))
    return int(made), int(last)


class Ground(NamedTuple):
    """What an order to a site builds on: ``reference``, the global model of round ``base`` (None, -1: it is whole).

    ``taken`` is the round of the site's last answer that was used, 0 for none.
    """

    base: int
    reference: Arrays | None
    taken: int


@dataclass
class Known:
    """The last two global models, as sites read them, by the round after which each was made (0: the first).

    A site that was silent for longer is sent its model whole. ``has`` is the round of each site's global model, by
    name; ``taken`` that of its last answer that was used. ``contacts`` counts those since the last global model was
    made.
    """

    models: dict[int, Arrays] = field(default_factory=dict)
    has: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    contacts: int = 0

    @property
    def now(self) -> int:
        """The round after which the last global model was made."""
        return max(self.models)

    def tell(self, model: Arrays, t: int, share: float) -> Arrays:
        """How a global ``model`` of round ``t`` goes out: the first whole, then a ``share`` of it for each contact."""
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
        """Record whose orders of round ``t`` brought the global model (``sent``), and whose answers are ``good``."""
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
