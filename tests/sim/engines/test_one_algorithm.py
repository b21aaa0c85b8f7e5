"""Algorithm 1 on a stack and Algorithm 1 with messages are one algorithm, whatever it is asked to do."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedsmall.clients.client_app import app
from fedsmall.clients.site_data import give_federation
from fedsmall.errors import PlanError, ReplyError
from fedsmall.federation import Federation, Samples, Task
from fedsmall.methods import METHODS, method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy, Recipe, Tree
from fedsmall.plan import Plan
from fedsmall.sim.engines.evaluation import CentralEvaluator
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.strategies.grid_trainer import GridTrainer
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.strategies.server.run_loop import Outcome, run_rounds
from fedsmall.tasks import build_federation
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import journey
from fedsmall.wire import EXAMPLES, METRICS, STEPS

ADAM = Recipe(optimizer="adam", lr=0.01, batch=2, local_epochs=1)
MOMENTUM = Recipe(lr=0.05, momentum=0.5)
RESET = ADAM.model_copy(update={"optimizer_state": "reset"})
PRIVATE = {"privacy": Privacy(clip=0.1, noise=2.0)}
PATIENTS = {"privacy": Privacy(level="patient", clip=0.5, epsilon=3.0, lot=4)}
SGD = Recipe(lr=0.05, local_steps=2)
BLUR = {"privacy": Privacy(blur=1.0)}
SETTINGS: dict[str, dict[str, Any]] = {
    "FedDC": {"permute_every": 1, "aggregate_every": 4},
    "FedAvg": {"aggregate_every": 1},
    "FedProx": {"aggregate_every": 3, "proximal_mu": 0.5},
}


def plan_of(name: str = "FedDC", settings: dict[str, Any] | None = None, **changes: Any) -> Plan:
    settings = SETTINGS.get(name, {}) if settings is None else settings
    defaults = {
        "name": "test",
        "task": "breast_cancer",
        "sites": 5,
        "samples_per_site": 8,
        "rounds": 9,
        "dtype": "float64",
        "model_options": {"hidden": [6]},
        "method": method(name, **settings),
        "recipe": Recipe(**METHODS[name].recipe | {"lr": 0.05}),
    }
    plan = Plan(**(defaults | changes))
    return plan.with_model_of(plan.sites or 1)


def federation_of(plan: Plan) -> Federation:
    if isinstance(plan.task, dict):
        return table(plan)
    federation = build_federation(plan)
    return federation.pooled() if plan.method.family == "central" else federation


def table(plan: Plan, sites: int = 7, wild: tuple[int, ...] = (), scale: float = 1.7e308) -> Federation:
    """A table of three columns; at wild sites its numbers are so large that no model stays finite, or of that scale."""
    rng = np.random.default_rng(0)
    samples = []
    for number in range(sites):
        x, y = rng.standard_normal((8, 3)), np.arange(8) % 2
        samples.append(Samples(np.sign(x) * scale if number in wild else x, y))
    hinge = isinstance(plan.task, dict)
    task = Task("table", (3,), 2, "hinge" if hinge else "cross_entropy", ("accuracy", "loss"))
    names = tuple(f"site-{number}" for number in range(sites))
    return Federation(task, names, tuple(samples), Samples(rng.standard_normal((10, 3)), np.arange(10) % 2))


def batched(plan: Plan, federation: Federation | None = None) -> Outcome:
    federation = federation or federation_of(plan)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    return run_rounds(
        plan,
        trainer,
        lambda site: initial_model(plan, federation.task, site),
        evaluator=CentralEvaluator(plan, federation, trainer),
    )


@dataclass
class ByMessages:
    """A run over a grid, of which anything may be changed before it begins."""

    plan: Plan
    grid: Any
    initial: Callable[[str | None], Any]
    evaluator: Any = None
    progress: Any = None
    stop: Any = None
    journal: Any = None
    in_pieces: bool = True
    roster: Roster = field(default_factory=Roster)

    @cached_property
    def sites(self) -> GridTrainer:
        """The sites, which have answered the roll call."""
        return GridTrainer(self.plan, self.grid, roster=self.roster)

    def run(self) -> Outcome:
        return run_rounds(
            self.plan,
            self.sites,
            self.initial,
            evaluator=self.evaluator,
            progress=self.progress,
            stop=self.stop,
            journal=self.journal,
            in_pieces=self.in_pieces,
        )


def loop_of(plan: Plan, federation: Federation | None = None, **more: Any) -> ByMessages:
    federation = federation or federation_of(plan)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    give_federation(plan, federation)
    return ByMessages(
        plan,
        InProcessGrid(app, len(federation.names)),
        lambda site: initial_model(plan, federation.task, site),
        CentralEvaluator(plan, federation, trainer),
        **more,
    )


def assert_alike(one: Outcome, other: Outcome, atol: float = 1e-9) -> None:
    assert (one.model is None) == (other.model is None)
    for name, array in (one.model or {}).items():
        np.testing.assert_allclose(array, other.model[name], rtol=0, atol=atol)
    for counted in ("contacts", "rounds", "bytes_sent", "client_updates", "privacy"):
        assert getattr(one, counted) == getattr(other, counted), counted
    assert [(e["t"], e["site"], e["kind"]) for e in one.events] == [
        (e["t"], e["site"], e["kind"]) for e in other.events
    ]
    assert len(one.evaluations) == len(other.evaluations)
    for mine, theirs in zip(one.evaluations, other.evaluations, strict=True):
        assert (mine.t, mine.sites.get("names")) == (theirs.t, theirs.sites.get("names"))
        assert mine.sites.get("loss_mean") == pytest.approx(theirs.sites.get("loss_mean"), abs=1e-8)
        assert (mine.common or {}) == pytest.approx(theirs.common or {}, abs=1e-8)


def assert_equal_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


def plan_for(name: str, settings: dict[str, Any] | None = None, **changes: Any) -> Plan:
    """A plan that the method can run; a Radon point needs more sites than a model has parameters, in general position:
    two outputs of a softmax are not, and one of a hinge is.
    """
    if "Radon" in name:
        few = {"task": {"name": "table"}, "sites": None, "samples_per_site": None, "initial_models": "independent"}
        changes |= {**few, "model": "linear", "model_options": {}}
    return plan_of(name, settings, **changes)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_same_on_a_stack_and_with_messages(name: str) -> None:
    plan = plan_for(name, evaluate_every=4)

    assert_alike(batched(plan), loop_of(plan).run())


CASES = {
    "moments that travel": plan_of(recipe=ADAM),
    "moments that start afresh": plan_of(recipe=RESET, evaluate_every=2),
    "FedAvg with moments": plan_of("FedAvg", recipe=ADAM),
    "proximal, afresh": plan_of("FedProx", recipe=RESET),
    "independent starts": plan_of(initial_models="independent"),
    "a random schedule": plan_of(settings={"permute_every": 2, "aggregate_every": 4, "random_schedule": True}),
    "clip and noise": plan_of(settings={**SETTINGS["FedDC"], **PRIVATE}, evaluate_every=2),
    "some of the sites": plan_of(settings={**SETTINGS["FedDC"], "fraction": 0.6}, evaluate_every=3),
    "some of the sites, moments": plan_of(settings={**SETTINGS["FedDC"], "fraction": 0.4}, recipe=ADAM),
    "some, starting apart": plan_of(settings={**SETTINGS["FedDC"], "fraction": 0.4}, initial_models="independent"),
    "FedAvg over some": plan_of("FedAvg", {"aggregate_every": 2, "fraction": 0.6}, evaluate_every=3),
    "SCAFFOLD over some": plan_of("SCAFFOLD", {"aggregate_every": 2, "fraction": 0.6}),
    "some, in private": plan_of(settings={**SETTINGS["FedDC"], **PRIVATE, "fraction": 0.6}),
    "patients": plan_of(settings={**SETTINGS["FedDC"], **PATIENTS}, recipe=SGD, evaluate_every=2),
    "patients, moments that travel": plan_of(
        settings={**SETTINGS["FedDC"], **PATIENTS}, recipe=Recipe(optimizer="adam", lr=0.01)
    ),
    "patients, some of the sites": plan_of(
        settings={**SETTINGS["FedDC"], **PATIENTS, "fraction": 0.6}, recipe=MOMENTUM, evaluate_every=2
    ),
    "patients, proximal": plan_of("FedProx", {**SETTINGS["FedProx"], **PATIENTS}, recipe=SGD),
    "patients, SCAFFOLD": plan_of("SCAFFOLD", {"aggregate_every": 2, **PATIENTS}, recipe=SGD),
    "patients, moments that stay": plan_of(
        "FedAvg", {"aggregate_every": 2, **PATIENTS}, recipe=Recipe(momentum=0.5, optimizer_state="stay")
    ),
    "patients at large": plan_of("Central", PATIENTS),
    "blur": plan_of(settings={**SETTINGS["FedDC"], **BLUR}, evaluate_every=2),
    "blur over some": plan_of(settings={**SETTINGS["FedDC"], **BLUR, "fraction": 0.6}),
    "blur of 0": plan_of(settings={**SETTINGS["FedDC"], "privacy": Privacy(blur=0.0)}, recipe=ADAM, evaluate_every=2),
    "blur of running statistics": plan_of(
        task="digits",
        model="cnn",
        model_options={"norm": "batch"},
        rounds=3,
        sites=3,
        settings={**SETTINGS["FedDC"], **BLUR},
    ),
    "weighted": plan_of(settings={**SETTINGS["FedDC"], "weighted": True}),
    "trees folded at the server": plan_of("RepTreeFL", {"aggregate_every": 2, "tree": Tree(fold_at="server")}),
    "trees that travel": plan_of(
        settings={**SETTINGS["FedDC"], "tree": Tree(travel="trees", drop=0.2)}, recipe=ADAM, evaluate_every=2
    ),
    "trees that travel, afresh": plan_of(
        settings={**SETTINGS["FedDC"], "tree": Tree(travel="trees", drop=0.2)}, recipe=RESET
    ),
    "a tree in a chain": plan_of(settings={**SETTINGS["FedDC"], "tree": Tree(fanout=2, depth=2)}, recipe=ADAM),
    "one site": plan_of(sites=1),
    "two sites": plan_of(sites=2),
    "medians": plan_of(settings={**SETTINGS["FedDC"], "aggregator": "median"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_stack_and_messages_agree_on(case: str) -> None:
    assert_alike(batched(CASES[case]), loop_of(CASES[case]).run())


@pytest.mark.parametrize("state", ["travel", "reset"])
@pytest.mark.parametrize("name", METHODS)
def test_an_evaluation_changes_no_number(name: str, state: str) -> None:
    recipe = Recipe(**METHODS[name].recipe | {"lr": 0.05, "optimizer_state": state})
    if name != "SCAFFOLD" and (state == "reset" or name != "FedNova"):
        recipe = recipe.model_copy(update={"momentum": 0.5})
    settings = SETTINGS.get(name, {"aggregate_every": 4})
    seldom, often = (plan_for(name, settings, recipe=recipe, rounds=7, evaluate_every=every) for every in (None, 1))

    one, other = batched(seldom), batched(often)

    assert_equal_bits(one.model or {}, other.model or {})
    assert (one.contacts, one.bytes_sent, one.client_updates) == (
        other.contacts,
        other.bytes_sent,
        other.client_updates,
    )
    assert one.evaluations[-1].sites == other.evaluations[-1].sites


def test_who_trains_alone_releases_nothing() -> None:
    outcome = batched(plan_of("Standalone", PRIVATE, evaluate_every=3))

    assert (outcome.contacts, outcome.privacy["releases"], outcome.bytes_sent) == (0, 0, 0)


def test_an_evaluation_changes_no_number_under_patient_level_privacy() -> None:
    settings = {"permute_every": 3, "aggregate_every": 6, **PATIENTS}
    seldom, often = (plan_of(settings=settings, evaluate_every=every) for every in (None, 1))

    one, other = batched(seldom), batched(often)

    assert_equal_bits(one.model or {}, other.model or {})
    assert len(other.evaluations) == 9


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_an_evaluation_is_no_release(fraction: float) -> None:
    settings = {"permute_every": 3, "aggregate_every": 6, **PRIVATE, "fraction": fraction}
    seldom, often = (plan_of(settings=settings, evaluate_every=every) for every in (None, 1))

    one, other = batched(seldom), batched(often)

    assert one.privacy == other.privacy
    assert one.privacy["releases"] == one.contacts
    assert_equal_bits(one.model or {}, other.model or {})


@pytest.mark.parametrize(
    "settings",
    [SETTINGS["FedDC"], {"permute_every": None, "aggregate_every": 2}, {**SETTINGS["FedDC"], "fraction": 0.75}],
)
def test_a_model_that_is_not_finite_is_set_aside_where_it_arose(settings: dict[str, Any]) -> None:
    plan = plan_of(settings=settings, sites=None, samples_per_site=None, evaluate_every=3)
    federation = table(plan, 4, wild=(1,))

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    assert {event["site"] for event in one.events} == {"site-1"}
    assert all(np.isfinite(array).all() for array in one.model.values())


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS["FedDC"],
        {**SETTINGS["FedDC"], "fraction": 0.75},
        {"permute_every": None, "aggregate_every": 1},
        {"permute_every": 2, "aggregate_every": None},
    ],
)
@pytest.mark.parametrize("recipe", [Recipe(lr=0.05), MOMENTUM])
@pytest.mark.parametrize("every", [None, 3])
def test_a_site_of_absurd_numbers_is_set_aside_and_named(
    settings: dict[str, Any], recipe: Recipe, every: int | None
) -> None:
    plan = plan_of(settings=settings, sites=None, samples_per_site=None, evaluate_every=every, recipe=recipe)
    federation = table(plan, 6, wild=(2,), scale=1e6)

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    assert {(event["site"], event["kind"]) for event in one.events} == {("site-2", "set aside")}
    assert [event["reason"] for event in one.events] == [event["reason"] for event in other.events]


@pytest.mark.parametrize(
    ("metric", "value", "reason"),
    [
        (EXAMPLES, 9, "more than the site said at the roll call"),
        (STEPS, 4 * 2 + 1, "more than were ordered"),
        ("age", 71, "none that a site of this run has"),
    ],
)
def test_a_site_that_says_more_than_its_order_and_the_roll_call_allow_is_set_aside(
    monkeypatch: pytest.MonkeyPatch, metric: str, value: int, reason: str
) -> None:
    # 8 samples in batches of 2 are 4 steps a round, and each order is for 2 rounds
    plan = plan_of("FedAvg", {"aggregate_every": 2}, rounds=2, recipe=Recipe(batch=2, local_epochs=1))
    loop = loop_of(plan)
    honest = loop.grid.send_and_receive

    def lying(orders: Any, **more: Any) -> Any:
        replies = list(honest(orders, **more))
        replies[1].content[METRICS][metric] = value
        return replies

    assert loop.sites.names[1] == "site-001"
    monkeypatch.setattr(loop.grid, "send_and_receive", lying)
    events = loop.run().events

    assert [(event["site"], event["kind"]) for event in events] == [("site-001", "set aside")]
    assert reason in events[0]["reason"]


def test_without_the_gate_one_site_of_absurd_numbers_decides_the_mean() -> None:
    settings = {"permute_every": None, "aggregate_every": 1}
    plans = [plan_of(settings={**settings, "gate": gate}, sites=None, samples_per_site=None) for gate in (20.0, False)]
    federation = table(plans[0], 6, wild=(2,), scale=1e6)

    with_gate, without = (batched(plan, federation) for plan in plans)

    norms = [max(np.abs(array).max() for array in run.model.values()) for run in (with_gate, without)]
    assert norms[0] < 10
    assert norms[1] > 1000
    assert not without.events


def test_an_aggregate_that_has_outgrown_the_last_common_model_is_refused_on_a_stack_and_with_messages() -> None:
    plan = plan_of("FedAvg", {"aggregate_every": 2}, sites=None, samples_per_site=None, recipe=MOMENTUM)
    federation = table(plan, 4, wild=(0, 1, 2, 3), scale=1e6)

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    assert {(event["site"], event["kind"]) for event in one.events} == {("server", "refused")}
    for name, array in initial_model(plan, federation.task).items():
        np.testing.assert_array_equal(one.model[name], array)


def test_a_run_in_which_no_model_is_finite_ends_and_says_so() -> None:
    plan = plan_of(sites=None, samples_per_site=None)
    federation = table(plan, 2, wild=(0, 1))

    with pytest.raises(ReplyError, match="No site gave a model that may be used at round 1"):
        batched(plan, federation)
    with pytest.raises(ReplyError, match="No site gave a model that may be used at round 1"):
        loop_of(plan, federation).run()


def test_the_same_seed_gives_the_same_bits() -> None:
    plan = plan_of(recipe=ADAM, dtype="float32")

    assert_equal_bits(batched(plan).model, batched(plan).model)


@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_a_run_that_is_stopped_at_every_contact_and_resumed_is_the_run_in_one_go(tmp_path, fraction: float) -> None:
    settings = {**SETTINGS["FedDC"], **PRIVATE, "fraction": fraction}
    plan = plan_of(settings=settings, rounds=7, evaluate_every=2)
    whole = loop_of(plan).run()

    for _ in range(20):
        part = loop_of(plan, journal=FileJournal(tmp_path), stop=lambda: True).run()
        if not part.stopped:
            break

    assert_equal_bits(whole.model, part.model)
    assert part.privacy == whole.privacy
    for counted in ("contacts", "rounds", "bytes_sent", "client_updates", "events", "evaluations"):
        assert getattr(part, counted) == getattr(whole, counted), counted


@pytest.mark.parametrize("fraction", [1.0, 0.6, 0.2])
def test_the_map_of_a_chain_is_where_its_models_trained(fraction: float) -> None:
    plan = plan_of(settings={"permute_every": 2, "aggregate_every": 6, "fraction": fraction}, rounds=9)
    trained: list[list[str]] = []
    loop = loop_of(plan, in_pieces=False)
    federation = federation_of(plan)
    watcher = SimpleNamespace(needs=lambda contact: True, see=lambda moment: trained.append(list(moment.sites)))

    run_rounds(plan, loop.sites, loop.initial, watchers=[watcher], in_pieces=False)

    names = federation.names
    assert trained == [sorted(names[site] for site in at) for _, at in journey(plan, 5)]


@pytest.mark.parametrize("fraction", [1.0, 0.6, 0.4])
def test_under_a_fraction_as_many_models_travel_as_sites_are_drawn_and_all_train_at_every_contact(
    fraction: float,
) -> None:
    plan = plan_of(settings={"permute_every": 1, "aggregate_every": 6, "fraction": fraction}, rounds=12)

    for _, at in journey(plan, 5):
        assert len(at) == round(fraction * 5)
        assert Counter(at.tolist()).most_common(1)[0][1] == 1  # no two models at one site


@pytest.mark.parametrize("name", ["FedDC", "FedAvg"])
def test_a_run_that_is_taken_back_to_an_earlier_contact_goes_on_to_the_same_bits(tmp_path, name: str) -> None:
    plan = plan_of(name, {"permute_every": None if name == "FedAvg" else 1, "aggregate_every": 2}, recipe=ADAM)
    whole = loop_of(plan, journal=FileJournal(tmp_path), in_pieces=False).run()
    journal = FileJournal(tmp_path)
    contact = journal.contacts()[0]

    journal.go_back(contact)
    again = loop_of(plan, journal=journal, in_pieces=False).run()

    assert contact < whole.contacts - 3
    assert_equal_bits(whole.model or {}, again.model or {})
    assert again.bytes_sent == whole.bytes_sent


def test_a_state_whose_travellers_have_outgrown_the_common_model_is_not_journalled(tmp_path) -> None:
    settings = {"permute_every": 1, "aggregate_every": 4}
    plan = plan_of(settings=settings, sites=None, samples_per_site=None)
    federation = table(plan, 4, wild=(0, 1, 2, 3), scale=1e9)
    journal = FileJournal(tmp_path, keep=99)

    outcome = loop_of(plan, federation, journal=journal).run()

    assert journal.contacts() == [4, 8, 9]  # after an aggregation that was refused all have the last common model
    assert {event["kind"] for event in outcome.events} == {"refused"}


def test_a_journal_of_an_earlier_release_is_refused_in_one_line(tmp_path) -> None:
    plan, journal = plan_of(), FileJournal(tmp_path)
    journal.save(2, {"record/0/w": np.zeros(2)}, {"slots": {}, "common": 0})

    with pytest.raises(PlanError, match=r"written by an earlier release of fedsmall\. Go on with that release"):
        loop_of(plan, journal=journal).run()
