"""Every scenario that comes along is dealt as it is written, and every method of it runs two rounds, on made data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsmall.data.federation import Federation, Samples
from fedsmall.models.registry import initial_model
from fedsmall.planning.tasks import build_federation
from fedsmall.research.evidence.items import items
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.scenario import Scenario, load, scenarios
from tests.sim import stand_ins

FILES = scenarios()
# graph networks do, and say so
pytestmark = pytest.mark.filterwarnings("ignore:this model trains one site at a time")
TWO_ROUNDS = ("rounds=2", "evaluate_every=1")  # for who stops early compares two evaluations
FEW_SITES = ("sites=2", "samples_per_site=2")
SMALL_SCANS = ("task.size=16",)
SMALL_GRAPHS = ("task.subjects=16", "recipe.local_epochs=1")

# Models are made smaller only where the full one takes more than seconds; the slow tests run those as they are written.
RESNET = ("model='cnn'",)
OTHER_MODELS = {
    "resnet18": RESNET,
    "resnet10_cropped": (
        "model='mlp'",
        "model_options={}",
    ),  # in replica trees, of which a site trains up to forty models
    "g1": ("task.regions=40", "model_options.widths=[6, 40]"),
    "g2": ("task.regions=48", "model_options.widths=[6, 40, 48]"),
    "shared_part": (*(one for one in items()["reptreefl-table4"].quick if one.startswith(("task.regions", "model_"))),),
}


def kind(scenario: Scenario) -> str:
    """The source of a scenario's task: its name, or the word that its table begins with."""
    return scenario.task if isinstance(scenario.task, str) else next(iter(scenario.task))


def few(name: str) -> tuple[str, ...]:
    """What is set anew so that two rounds take a second: fewer sites and samples, smaller images and graphs."""
    scenario = load(FILES[name])
    settings = {
        "cifar10": ("sites=10", "samples_per_site=1") if "fraction" in name else FEW_SITES,
        "mnist": FEW_SITES,
        "images": (*FEW_SITES, *SMALL_SCANS),
        "connectomes": SMALL_GRAPHS,
        "medmnist": FEW_SITES if scenario.folds is None else ("samples_per_site=20", "recipe.local_epochs=1"),
    }.get(kind(scenario), ())
    if scenario.model_options.get("stem") == "imagenet":
        settings = (*settings, "task.size=64")  # which a stem of stride 4 leaves more than one pixel to normalise by
    return (*settings, "partition='iid'") if "skewed" in name and settings else settings


def with_other_model(name: str) -> tuple[str, ...]:
    """The model that stands for a scenario's own, where that takes more than seconds."""
    scenario = load(FILES[name])
    norm = (f"model_options.norm='{scenario.model_options['norm']}'",) if "norm" in scenario.model_options else ()
    smaller = OTHER_MODELS.get(scenario.model, ())
    return ("model_options={}", *smaller, *norm) if smaller == RESNET else smaller


def quickly_judged(federation: Federation) -> Federation:
    """The same sites, judged on a few samples: what is tested is that they train."""
    few_of = [None if held is None else Samples(held.x[:8], held.y[:8]) for held in federation.held_out]
    test = Samples(federation.test.x[:8], federation.test.y[:8])
    return replace(federation, test=test, held_out=tuple(few_of), extra=())


def run_every_method(scenario: Scenario, root: Path) -> None:
    plans = [plan for plan in scenario.plans() if plan.seed == scenario.seeds[0] and plan.fold == 0]
    federation = quickly_judged(build_federation(plans[0], root))

    for plan in plans:
        last = run_plan(plan, federation, "cohort").evaluations[-1]
        assert last.t == 2
        values = [*(last.common or {}).values(), last.sites.get("accuracy_mean", last.sites.get("mae_mean", 0.0))]
        assert np.isfinite(values).all(), plan.method.label


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return stand_ins.make(tmp_path_factory.mktemp("stand-ins"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", FILES)
def test_a_scenario_is_dealt_as_it_is_written_and_its_model_takes_the_samples(name, root):
    smaller_files = SMALL_SCANS if "chest_xray" in FILES[name].read_text() else ()  # 1,200 of 224 x 224 fill the memory
    plan = load(FILES[name], smaller_files).plans()[0]

    federation = build_federation(plan, root)

    assert plan.sites in (None, len(federation.names))
    if plan.samples_per_site is not None and plan.partition != {"sizes": "skewed"}:
        assert {len(site) for site in federation.train} == {plan.samples_per_site}
    assert federation.test_samples > 0
    assert plan.model == "shared_part" or initial_model(plan, federation.task)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FILES)
def test_every_method_of_a_scenario_runs(name, root):
    run_every_method(load(FILES[name], [*TWO_ROUNDS, *with_other_model(name), *few(name)]), root)


@pytest.mark.slow
def test_the_mri_scenario_runs_as_it_is_printed(root):
    """253 images of two classes, 25 sites of 8 and 53 to test, 150 x 150 in colour: only its rounds are fewer."""
    name = next(name for name in FILES if name.endswith("feddc_table1_mri"))
    plan = load(FILES[name], TWO_ROUNDS).plans()[0]
    federation = build_federation(plan, root)

    last = run_plan(plan, federation, "cohort").evaluations[-1]

    assert ([len(site) for site in federation.train], len(federation.test)) == ([8] * 25, 53)
    assert (plan.model, federation.task.input_shape, last.t) == ("cnn", (3, 150, 150), 2)
    assert last.common is not None
    assert np.isfinite(list(last.common.values())).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FILES if with_other_model(name)])
def test_every_method_of_a_scenario_runs_with_its_own_model(name, root):
    run_every_method(load(FILES[name], [*TWO_ROUNDS, *few(name)]), root)
