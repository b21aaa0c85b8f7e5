"""A server that crafts the model: what it reads from a site that looks at no model, and that the site refuses it.

The ladder and units that see all patients alike, against a real station of 142 patients. The server has another
hospital's table, to know how features go together, and no patient of the site.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.hospital import HospitalClient
from fedsmall.clients.incoming import Incoming, count_twins, inner_inputs, pairs_read, sign_of_craft
from fedsmall.clients.self_check import patients_read
from fedsmall.data.federation import Task
from fedsmall.errors import PolicyError
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy, Recipe
from fedsmall.planning.tasks import build_federation
from fedsmall.privacy.reading import distances_to_others, records_read
from fedsmall.sim.consortium import sample_data
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs import scenario
from fedsmall.strategies.server.grid import QuorumError
from fedsmall.wire import IS_GLOBAL, MODEL, NAMES, ROUND, split
from tests import ROOT, only_quick
from tests.attacks.test_sums import crafted
from tests.attacks.world import averages
from tests.clients.test_data_process import NAMES as SITES
from tests.clients.test_data_process import order, plan, scaled
from tests.sim.engines.harness import federation_of
from tests.sim.engines.plans import PLANS
from tests.sim.sealing.federation import Federation, run

BLIND = "check_models = false\n"  # a station that looks at no model
MUTE = BLIND + "most_read = 1000\nleast_batch = 1\n"  # ... nor at what it sends
DIRECTIONS, STEPS = 8, 64


def mlp(hidden, name="FedAvg", privacy=None, **recipe):
    asked = plan(rounds=8, name=name, privacy=privacy)
    changes = {"model": "mlp", "model_options": {"hidden": hidden}, "recipe": Recipe(**{"lr": 0.05, **recipe})}
    return asked.model_copy(update=changes)


@pytest.fixture
def station(tmp_path):
    paths = {name: tmp_path / f"{name}.csv" for name in SITES}
    sample_data.write(list(paths.values()))
    (tmp_path / "policy.toml").write_text("")
    return DataProcess("essen", paths["essen"], tmp_path / "home", tmp_path / "policy.toml")


@pytest.fixture
def elsewhere(station):
    """Another hospital's patients as a model sees them, about: (patients, features)."""
    lines = station.data.with_name("bonn.csv").read_text().splitlines()[1:]
    x = np.array([line.split(",")[:-1] for line in lines], dtype=np.float64)
    return (x - x.mean(axis=0)) / x.std(axis=0)


def ladder(model, elsewhere, size=0.01):
    """The model with a ladder in its first layer and one unit alive behind it."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(DIRECTIONS, elsewhere.shape[1]))
    directions /= (elsewhere @ directions.T).std(axis=0)[:, None]  # projections of deviation 1
    thresholds = np.linspace(-3.5, 0.35, STEPS)
    out = {name: array.copy() for name, array in model.items()}
    out["arrays/0.weight"][:] = size * np.repeat(directions, STEPS, axis=0)
    out["arrays/0.bias"][:] = -size * np.tile(thresholds, DIRECTIONS)
    out["arrays/2.weight"][:] = 0
    out["arrays/2.weight"][0] = 1 / (size * len(out["arrays/0.bias"]))
    out["arrays/2.bias"][:] = [1.0] + [-1.0] * (len(out["arrays/2.bias"]) - 1)
    return out


def patients_on_the_ladder(start, sent, patients):
    """Which patients the server reads to 1% from differences of neighbours, (patients,) of bool."""
    moved = [
        np.subtract(sent[f"arrays/0.{part}"], start[f"arrays/0.{part}"], dtype=float) for part in ("weight", "bias")
    ]
    inside = np.arange(1, len(moved[1])) % STEPS > 0
    apart = {f"0.{part}": np.diff(move, axis=0)[inside] for part, move in zip(("weight", "bias"), moved, strict=True)}
    return records_read({name: np.zeros_like(array) for name, array in apart.items()}, apart, patients, 0.01)


def all_alike(model, elsewhere, parallel):
    """The model whose units are all on for everybody: of one direction, or of any and with large thresholds."""
    rng = np.random.default_rng(0)
    out = {name: array.copy() for name, array in model.items()}
    units, features = out["arrays/0.weight"].shape
    out["arrays/0.weight"][:] = 1e-3 * rng.normal(size=features if parallel else (units, features)) / features**0.5
    out["arrays/0.bias"][:] = 0.02
    out["arrays/2.weight"][:] = out["arrays/2.weight"][:, :1]
    return out


def patients_alike(start, sent, patients):
    """Which patient the server reads to 5% where all units see one alike, (patients,) of bool."""
    weight, bias = (np.subtract(sent[f"arrays/0.{p}"], start[f"arrays/0.{p}"], dtype=float) for p in ("weight", "bias"))
    total = {"0.weight": weight.sum(axis=0, keepdims=True), "0.bias": bias.sum(keepdims=True)}
    return records_read({name: np.zeros_like(array) for name, array in total.items()}, total, patients, 0.05)


def asked(station, the_plan, craft, policy="", before=True):
    """What the station answers to an order with a crafted model, which model that was, and its patients."""
    model = scaled(station, the_plan)
    if before:
        first, _ = station.answer("train", order(1, the_plan=the_plan), model)
        assert "error" not in first
    station.policy_file.write_text(policy)
    crafted = craft(model)
    words, sent = station.answer("train", order(2, the_plan=the_plan), crafted)
    return words, sent, crafted, station._core[1].train.x


def test_a_ladder_reads_patients_from_a_site_that_looks_at_no_model(station, elsewhere):
    words, sent, start, patients = asked(station, mlp([512, 8]), partial(ladder, elsewhere=elsewhere), MUTE)

    assert "error" not in words
    assert patients_on_the_ladder(start, sent, patients).sum() >= 20


def test_the_sites_own_attack_climbs_the_ladder_and_blurs(station, elsewhere):
    words, sent, start, patients = asked(station, mlp([512, 8]), partial(ladder, elsewhere=elsewhere), BLIND)

    assert words["metrics"]["blurred"] >= 1
    assert patients_on_the_ladder(start, sent, patients).sum() == 0
    assert "a lower bound" in [e for e in station.log.entries() if e["event"] == "blurred"][-1]["reason"]


@pytest.mark.parametrize("size", [1.0, 0.01])
@pytest.mark.parametrize("before", [True, False])
def test_a_ladder_is_refused_in_one_line_at_both_ends(station, elsewhere, size, before):
    craft = partial(ladder, elsewhere=elsewhere, size=size)

    words, sent, _, _ = asked(station, mlp([512, 8]), craft, before=before)

    assert "looks crafted to read patients" in words["error"] or "further from the last global one" in words["error"]
    assert "\n" not in words["error"]
    assert sent == {}
    assert station.log.entries()[-1]["event"] == "refused"
    assert station.log.entries()[-1]["reason"] in words["error"]


@pytest.mark.parametrize("parallel", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_units_that_are_all_alike_read_whoever_is_alone_in_a_batch_though_blurred(station, elsewhere, parallel):
    craft = partial(all_alike, elsewhere=elsewhere, parallel=parallel)
    blurred = mlp([4096], "FedDC", Privacy(blur=1.0), batch=1)
    station.policy_file.write_text("least_batch = 1\n")

    words, sent, start, patients = asked(station, blurred, craft, MUTE)

    assert "error" not in words
    assert patients_alike(start, sent, patients).sum() == 1


@pytest.mark.parametrize("parallel", [True, False])
def test_units_that_are_all_alike_are_refused(station, elsewhere, parallel):
    station.policy_file.write_text("least_batch = 1\n")
    blurred = mlp([512], "FedDC", Privacy(blur=1.0), batch=1)
    craft = partial(all_alike, elsewhere=elsewhere, parallel=parallel)

    words, sent, _, _ = asked(station, blurred, craft, "least_batch = 1\n", before=False)

    assert "looks crafted to read patients" in words["error"]
    assert sent == {}


def test_batches_of_one_are_refused_by_the_policy_that_comes_along(station):
    blurred = mlp([16], "FedDC", Privacy(blur=1.0), batch=1)

    assert "batches of 1" in station.answer("roll", order(1, the_plan=blurred), {})[0]["error"]


def test_the_first_model_is_the_plans_own_or_is_refused(station):
    model = scaled(station, mlp([16]))
    other = {name: array + np.float32(0.01) for name, array in model.items()}

    assert (
        "not the one with which the plan begins"
        in station.answer("train", order(1, the_plan=mlp([16])), other)[0]["error"]
    )
    assert "error" not in station.answer("train", order(1, the_plan=mlp([16])), model)[0]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda a: a.astype(np.float64), "not that of the plan"),
        (lambda a: a[..., :1], "not that of the plan"),
        (lambda a: a * np.float32("nan"), "a number that is not finite"),
        (lambda a: a + np.float32(9), "further from the last global one than 20 times"),
        (lambda a: a * np.float32(1e6), "further from the last global one than 20 times"),
    ],
)
def test_a_model_that_does_not_follow_is_refused_in_a_line(station, change, line):
    words, sent, _, _ = asked(station, mlp([16]), lambda model: {name: change(a) for name, a in model.items()})

    assert line in words["error"]
    assert sent == {}


def test_a_site_that_is_started_again_still_knows_the_last_model(station):
    model = scaled(station, mlp([16]))
    station.answer("train", order(1, the_plan=mlp([16])), model)
    again = DataProcess(station.name, station.data, station.home, station.policy_file)
    other = {name: array + np.float32(9) for name, array in model.items()}

    assert "further from" in again.answer("train", order(2, the_plan=mlp([16])), other)[0]["error"]
    assert "error" not in again.answer("train", order(2, the_plan=mlp([16])), model)[0]


def test_a_crafted_model_is_refused_in_a_sealed_run_with_secure_sums(tmp_path, monkeypatch):
    federation = Federation(tmp_path, 3, monkeypatch, change=crafted(lambda array: array + array.dtype.type(9)))

    with pytest.raises(QuorumError, match="0 of 3 sites answered") as told:
        run(federation, averages(3))

    assert "[site-002: the model that came is further from the last global one than 20 times" in str(told.value)


# -- what the signs are


def test_few_inputs_make_units_alike_by_chance_and_that_is_no_sign():
    rng = np.random.default_rng(0)

    for inputs in (3, 4, 6, 10, 30):
        assert count_twins(rng.normal(size=(256, inputs))) <= 2, inputs
    for inputs in (3, 4, 6, 10, 30):
        assert count_twins(np.repeat(rng.normal(size=(8, inputs)), 4, axis=0)) == 32, inputs
    assert count_twins(np.zeros((8, 4))) == 0
    assert count_twins(np.ones((8, 2))) == 0


def signs(change):
    the_plan = mlp([16, 8])
    task, x = Task("table", (6,), 2), np.random.default_rng(0).normal(size=(40, 6))
    first = initial_model(the_plan, task)
    return sign_of_craft(change({name: array.copy() for name, array in first.items()}), first, the_plan, task, x)


def test_each_sign_is_named():
    assert signs(lambda m: m) == ""
    assert "numbers more than 1,000 times as large" in signs(lambda m: m | {"0.weight": m["0.weight"] * 1e5})
    assert "16 of 16 units of 0.weight" in signs(lambda m: m | {"0.weight": np.repeat(m["0.weight"][:1], 16, axis=0)})
    assert "thresholds of 0.bias" in signs(lambda m: m | {"0.bias": m["0.bias"] + 5})
    assert "thresholds of 0.bias" in signs(lambda m: {"0.bias": m["0.bias"][:4] - 10, "0.weight": m["0.weight"][:4]})
    dead = signs(lambda m: m | {"2.bias": m["2.bias"] - 1.5})
    assert "8 of 8 units of hidden layer 2 are on for one patient here at most" in dead


# -- what the site's own attack finds


def test_a_difference_of_two_units_reads_whom_no_unit_does():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 5))
    start = {"0.weight": np.ones((2, 5)), "0.bias": np.array([0.0, 0.1]), "2.weight": np.array([[1.0, 3.0]])}
    slopes = np.array([[1, 1, 1, 1, 1, 0], [3, 3, 3, 3, 3, 3]])  # the second listens to the last patient too
    sent = start | {"0.weight": start["0.weight"] + slopes @ x, "0.bias": start["0.bias"] + slopes.sum(axis=1)}
    sizes = distances_to_others(x)

    assert not records_read(start, sent, x, 0.01, sizes).any()
    assert pairs_read(start, sent, "0", x, 0.01, sizes).tolist() == [False] * 5 + [True]


def pictures(the_plan):
    """A client of pictures and what it sends after one step of the product's cnn."""
    federation = build_federation(the_plan)
    seen = SimpleNamespace()
    fit = HospitalClient.fit

    def fitted(self, parameters, config):
        told = fit(self, parameters, config)
        seen.client, seen.sent = self, dict(zip(self.sent_names, map(np.asarray, told[0]), strict=True))
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HospitalClient, "fit", fitted)
        run_plan(the_plan, federation, "inprocess")
    return seen.client, seen.sent


def test_one_picture_in_a_batch_is_read_in_the_layer_behind_the_convolutions():
    table = {"name": "p", "task": "digits", "model": "cnn", "sites": 3, "samples_per_site": 8, "rounds": 1}
    table |= {"recipe": {"lr": 0.1, "batch": 1}, "method": [{"name": "FedAvg"}]}
    the_plan = scenario.build(table).plans()[0]
    client, sent = pictures(the_plan)
    mine, others = client.home.train.x, build_federation(the_plan).train[0].x
    inner = [inner_inputs(split(client.set_out, MODEL), client.plan, client.home.task, x) for x in (mine, others)]

    read = [patients_read(client.set_out, sent, the_plan, mine, inner=seen) for seen in ({}, *inner)]

    assert client.home.site != "site-000"
    assert read == [0, 1, 0]


# -- honest runs are never refused

SHIPPED = ("heart_disease", "patients", "diabetes", "diabetes_grades", "demo_breast_cancer", "demo_digits", "synthetic")
SEEN = [name for name, one in PLANS.items() if one.method.is_federated and one.method.trains_networks]


def refusals(the_plan, federation, folder):
    """What stations would refuse in a run of a simulation, each site with its own memory; real sites have no pieces."""
    refused, orders = [], []
    fit = HospitalClient.fit

    def fitted(self, parameters, config):
        came = split({name: np.array(a) for name, a in zip(config[NAMES], parameters, strict=True)}, MODEL)
        incoming = Incoming(folder / self.home.site, self, int(config[ROUND]), self.home.sites)
        orders.append(self.home.site)
        try:
            incoming.check(came)
        except PolicyError as error:
            refused.append(f"{self.home.site}, round {config[ROUND]}: {error}")
        told = fit(self, parameters, config)
        sent = dict(zip(self.sent_names, map(np.asarray, told[0]), strict=True))
        incoming.keep(came, bool(config[IS_GLOBAL]), split(sent, MODEL))
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HospitalClient, "fit", fitted)
        run_plan(
            the_plan.model_copy(update={"evaluate_every": None} if the_plan.stop is None else {}),
            federation,
            "inprocess",
        )
    assert orders
    return refused


QUICK = ("method: FedDC", "method: FedAdam", "groups: starting apart", "rounded: a tenth, running statistics")


@pytest.mark.parametrize("name", only_quick(QUICK, SEEN))
def test_no_model_of_an_honest_run_is_refused(name, tmp_path):
    assert refusals(PLANS[name], federation_of(PLANS[name]), tmp_path) == []


def test_rates_of_rare_events_are_no_sign(tmp_path):
    rng = np.random.default_rng(0)
    age, months = rng.normal(size=240), rng.exponential(30, 240).round(1) + 0.1
    rows = zip(age.round(2), months, (rng.random(240) < 0.1).astype(int), strict=True)
    (tmp_path / "t.csv").write_text("age,months,died\n" + "".join(f"{a},{m},{e}\n" for a, m, e in rows))
    table = {"name": "rare", "task": {"csv": str(tmp_path / "t.csv"), "time": "months", "event": "died"}, "sites": 4}
    table |= {"model": "linear", "rounds": 40, "recipe": {"lr": 1.0, "batch": 32, "local_epochs": 1}}
    the_plan = scenario.build(table | {"method": [{"name": "FedAvg"}]}).plans()[0]

    assert refusals(the_plan, build_federation(the_plan), tmp_path / "homes") == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHIPPED)
def test_no_model_of_a_shipped_scenario_is_refused(name, tmp_path, request):
    shorter = ("rounds=210", "sites=12") if name == "synthetic" else ()  # not 1,000 at 50: that is an hour
    plans = scenario.load(ROOT / "sim" / "scenarios" / f"{name}.toml", shorter).plans()
    methods = {one.method.model_dump_json(): one for one in reversed(plans) if one.method.is_federated}

    root = request.getfixturevalue("data_root") if name == "heart_disease" else None

    for number, one in enumerate(methods.values()):
        assert refusals(one, build_federation(one, root), tmp_path / str(number)) == [], one.method.label
