"""Algorithm 1 among sites without a server: what equals the run with one, what differs, and what is refused."""

import itertools
from typing import Any

import numpy as np
import pytest

from fedsmall.algorithm.gossip import Peers, Places
from fedsmall.algorithm.model_states import ModelStates
from fedsmall.errors import PlanError
from fedsmall.methods import METHODS, method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.consortium import runs
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.server.run_loop import run_rounds
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import RoundResult

MOMENTUM = Recipe(lr=0.05, momentum=0.5)
UNEVEN = {"partition": {"sizes": [4, 8, 12, 6, 10, 5]}, "samples_per_site": None}
LOSSY = {"by": "gossip", "loss": 0.3, "delay": 1, "tries": 1}


def plan_of(name: str = "FedDC", plan: dict[str, Any] | None = None, **settings: Any) -> Plan:
    settings = {"permute_every": 1, "aggregate_every": 4} | settings if name == "FedDC" else settings
    defaults = {"name": "test", "task": "breast_cancer", "sites": 6, "samples_per_site": 8, "rounds": 9}
    defaults |= {"dtype": "float64", "model_options": {"hidden": [6]}}
    recipe = {"recipe": Recipe(**METHODS[name].recipe | {"lr": 0.05})}
    return Plan(**(defaults | recipe | (plan or {})), method=method(name, **settings))


class Seen:
    """Keeps all moments of a run."""

    def __init__(self) -> None:
        self.moments: list[RoundResult] = []
        self.models: list[dict[str, np.ndarray]] = []

    def needs(self, comm_round: Any) -> bool:
        return True

    def see(self, result: RoundResult) -> None:
        self.moments.append(result)
        self.models.append({name: array.copy() for name, array in result.models().items()})


def walked(plan: Plan) -> Seen:
    federation, seen = build_federation(plan), Seen()
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    run_rounds(plan, trainer, lambda site: initial_model(plan, federation.task, site), watcher=seen)
    return seen


@pytest.mark.parametrize("more", [{}, {"recipe": MOMENTUM}, {"initial_models": "independent"}])
def test_until_its_first_average_a_chain_without_a_server_is_the_one_with_a_server_to_the_bit(more) -> None:
    served, alone = (walked(plan_of(plan=more, **way)) for way in ({}, {"topology": "gossip"}))

    for t in range(3):
        assert served.moments[t].sites == alone.moments[t].sites
        for name, array in served.models[t].items():
            assert np.array_equal(array, alone.models[t][name]), (t, name)


@pytest.mark.parametrize("settings", [{}, {"weighted": True}])
@pytest.mark.parametrize("name", ["FedDC", "FedAvg"])
def test_of_many_exchanges_it_is_the_run_with_a_server(name: str, settings: dict[str, Any]) -> None:
    settings = settings | ({"aggregate_every": 3} if name == "FedAvg" else {})
    uneven = UNEVEN if settings.get("weighted") else {}
    served = walked(plan_of(name, plan=uneven, **settings))
    alone = walked(plan_of(name, plan=uneven, **settings, topology={"by": "gossip", "exchanges": 100}))

    assert served.moments[-1].global_model is not None
    for word, array in served.moments[-1].global_model.items():
        assert np.allclose(alone.models[-1][word], array, atol=1e-10), "every site has the global model"
        assert np.allclose(alone.moments[-1].global_model[word], array, atol=1e-10)


def test_every_site_has_a_model_at_the_end_and_one_drawn_by_lot_is_kept() -> None:
    seen = walked(plan_of(topology=LOSSY))
    last = seen.moments[-1]

    assert len(last.sites) == 6
    differ = np.ptp(seen.models[-1]["0.weight"], axis=0).max()
    assert differ > 1e-6, "ten exchanges leave them a little apart"
    among = [np.array_equal(last.global_model["0.weight"], own) for own in seen.models[-1]["0.weight"]]
    assert sum(among) == 1


def test_messages_that_are_lost_cost_bytes_and_training_but_no_model_is_doubled() -> None:
    sound, lossy = (
        walked(plan_of(plan={"rounds": 40}, topology="gossip")),
        walked(plan_of(plan={"rounds": 40}, topology=LOSSY)),
    )
    updates = [sum(result.updates for result in seen.moments) for seen in (sound, lossy)]

    assert updates[0] == 6 * 40
    assert 0.3 * updates[0] < updates[1] < updates[0]
    assert all(len(set(result.sites)) == len(result.sites) <= 6 for result in lossy.moments)


def test_bytes_are_those_of_every_message_that_was_sent() -> None:
    plan = plan_of(plan={"rounds": 4}, topology="ring")
    model = sum(array.nbytes for array in initial_model(plan, build_federation(plan).task, None).values())
    seen = walked(plan)

    hop, average = 6 * (model + 3 * 16), 10 * 6 * (model + 8 + 3 * 16)
    assert [result.bytes_sent for result in seen.moments] == [hop, hop, hop, average]


def test_moments_go_along_and_are_paid_for() -> None:
    plan = plan_of(plan={"rounds": 2, "recipe": MOMENTUM}, topology="ring")
    plain = walked(plan_of(plan={"rounds": 2}, topology="ring")).moments[0].bytes_sent - 6 * 3 * 16

    assert walked(plan).moments[0].bytes_sent - 6 * 3 * 16 == 2 * plain


@pytest.mark.parametrize("loss", [0.0, 0.5])
def test_one_model_goes_round_a_ring_without_a_server(loss: float) -> None:
    seen = walked(
        plan_of(plan={"rounds": 20}, topology={"by": "ring", "loss": loss, "tries": 1}, aggregate_every=None, models=1)
    )
    places = [result.sites for result in seen.moments[:-1]]

    assert all(len(sites) <= 1 for sites in places)
    met = [sites[0] for sites in places if sites]
    order = sorted(set(met))
    assert len(order) == 6
    assert all(order.index(b) == (order.index(a) + 1) % 6 for a, b in itertools.pairwise(met))
    assert (len(met) == 19) == (loss == 0)


@pytest.mark.thorough
def test_an_average_is_of_all_that_were_trained_since_the_last_wherever_they_are(monkeypatch) -> None:
    trained: set[int] = set()
    late, waiting = [], []
    walk_some, agree = ModelStates.walk_some, Peers._agree

    def walking(self: ModelStates, rows: np.ndarray, *more: Any) -> RoundResult:
        trained.update(rows.tolist())
        return walk_some(self, rows, *more)

    def agreeing(self: Peers, result: RoundResult, places: Places) -> RoundResult:
        late.append((places.at == -1).sum())
        waiting.append(6 - len(trained))
        mean = self.states.stack.state["0.weight"][sorted(trained)].mean(0).numpy()
        agreed = agree(self, result, places)
        assert np.allclose(agreed.global_model["0.weight"], mean, atol=1e-10)
        trained.clear()
        return agreed

    monkeypatch.setattr(ModelStates, "walk_some", walking)
    monkeypatch.setattr(Peers, "_agree", agreeing)
    way = {"aggregate_every": 2, "random_schedule": True, "topology": {**LOSSY, "exchanges": 200}}
    walked(plan_of(plan={"rounds": 60}, **way))

    assert sum(late) > 5
    assert sum(waiting) > 5


def test_a_run_says_what_the_kept_model_is_worth_and_what_those_of_all_sites_are() -> None:
    plan = plan_of(topology="gossip")
    record = run_plan(plan, build_federation(plan), "cohort")

    last = record.evaluations[-1]
    assert record.model is not None
    assert last.common is not None
    assert len(last.sites["per_site"]["accuracy"]) == 6
    assert last.sites["accuracy_mean"] == pytest.approx(last.common["accuracy"], abs=0.1)


@pytest.mark.parametrize(
    ("said", "line"), [("mesh", 'topology is "server"'), ({"by": "gossip", "loss": 1.0}, "less than 1")]
)
def test_a_topology_that_is_none_is_refused(said: Any, line: str) -> None:
    with pytest.raises(PlanError, match=line):
        plan_of(topology=said)


def test_real_sites_refuse_before_anything_is_made(tmp_path) -> None:
    for way in ({"topology": "gossip"}, {"regions": 2}):
        with pytest.raises(PlanError, match="real sites have one server"):
            runs.prepare(tmp_path, "r", plan_of(**way, privacy=Privacy(blur=1.0)), ("a", "b"))
    assert not any(tmp_path.iterdir())


def test_the_word_server_is_what_there_is_without_it() -> None:
    assert plan_of(topology="server") == plan_of()
    assert Plan.model_validate_json(plan_of(topology=LOSSY).model_dump_json(exclude_defaults=True)) == plan_of(
        topology=LOSSY
    )
