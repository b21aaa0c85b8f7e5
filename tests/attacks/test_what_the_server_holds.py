"""In a sealed and secure run no program outside a hospital ever holds one hospital's model, nor reads a patient."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from fedsmall.aggregation.sums import SCALE
from fedsmall.clients import telling
from fedsmall.data.raw_site import RawSite
from fedsmall.exact import to_words
from fedsmall.plan import Plan
from fedsmall.privacy.reading import read_from_stack
from fedsmall.strategies.forms import Form, OpenModels
from fedsmall.strategies.records import to_arrays
from fedsmall.strategies.sealed_models import SealedModels
from fedsmall.wire import Arrays
from tests.attacks import memory
from tests.attacks.world import Trained, watch
from tests.sim.sealing.federation import BOTH, Federation, plan_of, run

METHODS = {"FedDC": {"permute_every": 1, "aggregate_every": 2}, "FedAvg": {"aggregate_every": 1}}
RUNS = [(name, sites) for name in METHODS for sites in (3, 5)]
CLEAR = {"blur": 0}
PLACES = ("memory", "disk", "passed")


class Watched(Federation):
    """A federation whose server is looked at before and after everything that it asks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.held: dict[str, set[bytes]] = {place: set() for place in PLACES}

    def look(self, *more: Any) -> None:
        """Write down all that the server holds: at work, on its disk, and ``more``, which has just come or goes."""
        self.held["memory"].update(memory.at_work(self))
        self.held["disk"].update(memory.files_of(self.folder / "server"))
        self.held["passed"].update(memory.reachable(more))

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        self.look(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        self.look(replies)
        return replies


@dataclass
class Held:
    """A run: what its server held, by place; what the sites ``trained``, what was ``common``, and what ``passed``."""

    plan: Plan
    held: dict[str, set[bytes]]
    trained: list[Trained]
    common: list[Arrays]
    passed: list[Arrays]
    told: list[np.ndarray]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs of this module, each walked once."""

    @cache
    def walked(name: str, sites: int, sealed: bool) -> Held:
        rounds = 4 if name == "FedDC" else 2
        plan = plan_of(name, sites, BOTH if sealed else CLEAR, method=METHODS[name], rounds=rounds, samples_per_site=30)
        trained: list[Trained] = []
        with pytest.MonkeyPatch.context() as patch:
            watch(patch, [], trained)
            told = watch_sums(patch)
            takes = "" if sealed else "sealed = false"
            federation = Watched(tmp_path_factory.mktemp("held"), sites, patch, takes)
            for step in ("write", "sum_up", "publish"):
                patch.setattr(SealedModels, step, looked_at(getattr(SealedModels, step), federation))
            patch.setattr(OpenModels, "write", looked_at(OpenModels.write, federation))
            outcome = run(federation, plan)
        federation.look(outcome, [message for passed in federation.passed for message in passed[1:]])
        averages = {each.t for each in trained if each.t in rounds_after_averages(plan)}
        common = [each.received for each in trained if each.t in averages]
        passed = [record for _, *both in federation.passed for message in both for record in records_of(message)]
        return Held(plan, federation.held, trained, [*common, outcome.model], passed, told)

    return walked


def watch_sums(patch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What each site says of its features, and of a model, as it is written down from now on: (numbers,) each."""
    told: list[np.ndarray] = []
    features, held_out = RawSite.sums, telling.held_out_sums

    def sums(self: RawSite, is_told: bool = False) -> Any:
        made = features(self, is_told)
        told.extend([made.total.copy(), made.squares.copy()])
        return made

    def of_model(*args: Any) -> Arrays:
        made = held_out(*args)
        told.extend(array.ravel().copy() for array in made.values() if array.size > 8)
        return made

    patch.setattr(RawSite, "sums", sums)
    patch.setattr(telling, "held_out_sums", of_model)
    return told


def records_of(message: Message) -> list[Arrays]:
    if message.has_error():
        return []
    return [to_arrays(record) for record in message.content.values() if isinstance(record, ArrayRecord)]


def looked_at(step: Any, federation: Watched) -> Any:
    """A step of the server's, which is looked at while it is under way, and when it is done."""

    def then_look(self: Form, *args: Any) -> Any:
        made = step(self, *args)
        federation.look(made)
        return made

    return then_look


def rounds_after_averages(plan: Plan) -> set[int]:
    every = plan.method.aggregate_every
    return {1, *(t + 1 for t in range(every, plan.rounds + 1, every))}


def traces(of: Held) -> Iterator[tuple[Trained, str, set[bytes]]]:
    """What each model that was trained would leave behind, but for what stands in a global model as well."""
    known = memory.windows(array for model in of.common for array in model.values())
    fixed = (np.rint(a.astype(np.float64) * SCALE).astype(np.int64) for model in of.common for a in model.values())
    known |= memory.windows(fixed)
    for each in of.trained:
        for kind, pieces in memory.traces_of(each.model, each.received).items():
            yield each, kind, pieces - known


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "sites"), RUNS)
def test_the_server_of_a_sealed_run_holds_no_model_of_a_site(runs, name, sites):
    of = runs(name, sites, True)
    searched = [pieces for _, _, pieces in traces(of)]

    assert len(of.trained) == sites * of.plan.rounds
    assert all(searched)
    assert [memory.found(set().union(*searched), of.held[place]) for place in PLACES] == [set()] * 3


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "sites"), RUNS)
def test_the_same_search_finds_every_model_in_the_clear(runs, name, sites):
    of = runs(name, sites, False)
    models = {each.t: set() for each in of.trained}
    for each, kind, pieces in traces(of):
        models[each.t] |= pieces if kind == "model" else set()

    whole = set().union(*models.values())
    hopped = set().union(*(models[t] for t in models if t + 1 not in rounds_after_averages(of.plan)))
    assert [memory.found(whole, of.held[place]) for place in ("memory", "passed")] == [whole] * 2
    assert memory.found(hopped, of.held["disk"]) == hopped


def written(told: list[np.ndarray]) -> set[bytes]:
    """What sums would leave behind, as numbers and as summands; as JSON they would be numbers in a list."""
    as_numbers = memory.windows([*told, *(array.astype(np.float32) for array in told)])
    return as_numbers | memory.windows(to_words(array) for array in told)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "sites"), RUNS)
def test_the_server_of_a_sealed_run_holds_no_sums_of_a_site(runs, name, sites):
    of, clear = runs(name, sites, True), runs(name, sites, False)
    searched = written(of.told)

    assert len(of.told) >= 2 * sites
    assert [memory.found(searched, of.held[place]) for place in PLACES] == [set()] * 3
    seen = memory.windows(clear.told)
    assert memory.found(seen, clear.held["passed"]) == seen


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "sites"), RUNS)
def test_the_search_finds_the_common_models_of_a_sealed_run(runs, name, sites):
    of = runs(name, sites, True)

    for model in of.common:
        pieces = memory.windows(model.values())
        assert [memory.found(pieces, of.held[place]) for place in ("memory", "passed")] == [pieces] * 2
    assert memory.found(pieces, of.held["disk"]) == pieces  # the last


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "sites"), RUNS)
def test_no_patient_is_read_from_what_the_server_of_a_sealed_run_holds(runs, name, sites):
    assert patients_read(runs(name, sites, True)) == 0
    assert patients_read(runs(name, sites, False)) > 2 * sites


def patients_read(of: Held) -> int:
    """How many patients of all sites can be read from any two things that a server has seen, were they models."""
    sent = stacked([*of.common, *seen_as_models(of)])
    patients = {each.site: each.patients for each in of.trained}
    read = {site: np.zeros(len(known), dtype=bool) for site, known in patients.items()}
    many = len(next(iter(sent.values())))
    for k in range(many):
        start = {name: np.repeat(array[k : k + 1], many, axis=0) for name, array in sent.items()}
        for site, known in patients.items():
            with np.errstate(all="ignore"):
                read[site] |= read_from_stack(start, sent, np.repeat(known[None], many, axis=0)).any(axis=0)
    return sum(int(known.sum()) for known in read.values())


def stacked(models: list[Arrays]) -> Arrays:
    return {name: np.stack([model[name] for model in models]) for name in models[0]}


def seen_as_models(of: Held) -> Iterator[Arrays]:
    """What passed, taken for models: those that are, envelopes as if in the clear, and sums as if nothing hid."""
    like = of.common[0]
    told: list[np.ndarray] = []
    for arrays in of.passed:
        if arrays.keys() == like.keys():
            yield arrays
        envelope, sums = arrays.get("letter"), [arrays[name] for name in ("masked", "sum") if name in arrays]
        if envelope is not None:
            yield shaped(envelope[-4 * sum(array.size for array in like.values()) :].view(np.float32), like)
        told += [numbers for numbers in sums if len(numbers) == sum(array.size for array in like.values())]
    for number, one in enumerate(told):
        yield shaped(one.view(np.int64) / SCALE, like)
        for other in told[:number]:
            yield shaped((one - other).view(np.int64) / SCALE, like)


def shaped(numbers: np.ndarray, like: Arrays) -> Arrays:
    """Numbers as a model, in the order of names."""
    ends = np.cumsum([like[name].size for name in sorted(like)])[:-1]
    pieces = np.split(numbers.astype(np.float32), ends)
    return {name: piece.reshape(like[name].shape) for name, piece in zip(sorted(like), pieces, strict=True)}
