"""Every attack of ours against every defence on five sets, and what each defence costs.

    FEDSMALL_DATA=... python -m examples.attacks_and_defences "40 x 4"   # or other sets; kept in docs/evidence
    python -m examples.attacks_and_defences --show                       # the table of what is kept, in the page, too

FedAvg that averages after every round, where the server sees most; the server is the attacker. It knows the plan, its
seed and all that was sent; under secure sums, the sums. The ladder and the picture are of the
contact that the server crafts, or of the first one; nobody looks at the models that come, so a policy is no defence
here, but for the column that says whether a station would have refused the crafted one.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from examples.kept import measured
from fedsmall.algorithm.departing import make_private
from fedsmall.clients.incoming import sign_of_craft
from fedsmall.data.federation import Federation
from fedsmall.errors import ReplyError
from fedsmall.extensions.audit.attack import audit
from fedsmall.extensions.audit.by_likelihood import explain
from fedsmall.extensions.audit.federations import world_of
from fedsmall.models.registry import common_model, initial_model
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.research.attacks.crafted import distances_to_records, read_ladders, with_ladders
from fedsmall.research.attacks.floats import step_of
from fedsmall.research.attacks.pictures import likeness, read_picture
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.scenario import build
from fedsmall.training.stack import Rows
from fedsmall.training.trainer import Leg, Signals
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import journey
from fedsmall.wire import Arrays, Traveller

KEPT = DOCS / "evidence" / "attacks-and-defences.json"
SEEDS, RUNS, SITES = 3, 16, 4  # of accuracy; federations of the membership attack; sites that are sent a crafted model
WAYS = 8  # directions of a ladder
WITHIN = 0.01  # of a record's norm: it is read
ALIKE = 0.5  # correlation with the right picture, which is more like than all others
AVERAGES: dict[str, Any] = {"name": "FedAvg", "aggregate_every": 1}
CHAIN: dict[str, Any] = {"name": "FedDC", "permute_every": 1, "aggregate_every": 10}  # of which the cost is told, too
PATIENT = {"level": "patient", "clip": 1.0}
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {"blur": 0.0},
    "blur 1": {"blur": 1.0},
    "exposure 1": {"exposure": 1.0},
    "epsilon 8": PATIENT | {"epsilon": 8.0},
    "epsilon 3": PATIENT | {"epsilon": 3.0},
    "epsilon 1": PATIENT | {"epsilon": 1.0},
    "secure sums": {"sealed": True, "secure": True, "blur": 0.0},
}
CANCER = {"task": "breast_cancer", "model_options": {"hidden": [64]}}
SETS: dict[str, dict[str, Any]] = {
    "breast cancer, 40 x 4": CANCER | {"sites": 40, "samples_per_site": 4, "batch": 4},
    "breast cancer, 3 x 100": CANCER | {"sites": 3, "samples_per_site": 100, "batch": 16},
    "digits, 20 x 20": {
        "task": "digits",
        "model_options": {"hidden": [64]},
        "sites": 20,
        "samples_per_site": 20,
        "batch": 10,
    },
    "digits, 20 x 8, one picture a batch": {
        "task": "digits",
        "model": "cnn",
        "lr": 0.03,
        "sites": 20,
        "samples_per_site": 8,
        "batch": 1,
    },
    "heart disease, 4 hospitals": {"task": "heart_disease", "model_options": {"hidden": [64]}, "batch": 16},
}


@dataclass(frozen=True)
class Cell:
    """What one defence leaves to each attack on one set; None or "" where an attack does not apply.

    Counts are of patients, ``membership`` is the server's AUC with its interval, ``digits`` whether the last digits of
    what leaves tell a site without any gradient from one with, ``refused`` why a station takes no ladder.
    """

    data: str
    defence: str
    accuracy: float | None
    chained: float | None
    patients: int
    division: int | None
    likelihood: tuple[int, int, int] | str
    membership: tuple[float, float, float] | None
    ladder: tuple[int, int] | None
    pictures: tuple[int, int] | None
    digits: bool | None
    refused: str


class Sent(NamedTuple):
    """What sites sent after a model that came to all of them, as the server sees it: one model each, or one sum."""

    start: Arrays
    models: Sequence[Arrays]
    records: Sequence[np.ndarray]


def plan_of(data: str, defence: str, method: dict[str, Any] = AVERAGES) -> Plan:
    """A method on one set under one defence, with the first seed."""
    table = dict(SETS[data])
    batch, privacy = table.pop("batch"), dict(DEFENCES[defence])
    if privacy.get("level"):
        privacy["lot"] = batch
    recipe = {"lr": table.pop("lr", 0.1), "batch": batch, "local_steps": 1}
    table = {"rounds": 40, "evaluate_every": 40, "seeds": list(range(SEEDS)), "model": "mlp"} | table
    return build({"name": data, "recipe": recipe, "method": [{**method, "privacy": privacy}]} | table).plans()[0]


def attack(data: str, defence: str, root: Path | None) -> Cell:
    """Try every attack on a set under a defence."""
    plan = plan_of(data, defence)
    federation = build_federation(plan, root)
    found = explain(plan, root)
    views = {finding.view: finding.auc for finding in audit(plan, world_of(plan, root), RUNS)}
    seen = views.get("commons" if plan.method.hidden else "server")
    chain = plan.model == "mlp"
    return Cell(
        data,
        defence,
        accuracy(plan, root),
        accuracy(plan_of(data, defence, CHAIN), root),
        sum(map(len, federation.train)),
        run_plan(plan, federation, "cohort", exposed=True).read.get("server"),
        found if isinstance(found, str) else (found.close, found.named, found.patients),
        (seen.value, seen.low, seen.high) if seen else None,
        climb(plan, federation) if chain else None,
        None if chain else look(plan, federation),
        tell_by_digits(plan, federation) if chain and plan.privacy.counted else None,
        refusal(plan, federation) if chain else "",
    )


def accuracy(plan: Plan, root: Path | None) -> float | None:
    """Of the global model, the mean over seeds; None where there is none at the end."""
    found = []
    for seed in range(SEEDS):
        one = plan.model_copy(update={"seed": seed})
        try:
            found.append(
                (run_plan(one, build_federation(one, root), "cohort").evaluations[-1].common or {})["accuracy"]
            )
        except ReplyError:
            return None
    return float(np.mean(found))


def answers(plan: Plan, federation: Federation, start: Arrays) -> Sent:
    """What the first sites send, under the plan's privacy, after the first contact with the model ``start``."""
    (contact, _), sites = next(iter(journey(plan, len(federation.names)))), SITES
    if plan.privacy.secure:
        sites = len(federation.names)
    samples, names = federation.train[:sites], federation.names[:sites]
    trainer = cohort_for(plan, federation.task, names, samples)
    stack = trainer.stack([Traveller(start)]).rows(np.zeros(len(names), dtype=np.int64))
    received = stack.clone()
    leg = Leg(np.arange(len(names)), contact.t, contact.rounds, True, False)
    trainer.walk(stack, [leg], Signals(np.ones(len(names), dtype=bool), {}, {}))
    make_private(plan, stack, received, names, contact.t)
    models = Rows(stack.state).arrays()
    each = [{name: array[row] for name, array in models.items()} for row in range(len(names))]
    records = [trainer.seen(site.x) for site in samples]
    if not plan.privacy.secure:
        return Sent(start, each, records)
    total = {name: np.mean([model[name] for model in each], axis=0, dtype=np.float64) for name in each[0]}
    return Sent(start, [total], [np.concatenate(records)])


def climb(plan: Plan, federation: Federation) -> tuple[int, int]:
    """Patients who are read from one order with a ladder, of how many."""
    start = with_ladders(initial_model(plan, federation.task), WAYS, np.random.default_rng(0))
    sent = answers(plan, federation, start)
    near = [
        distances_to_records(read_ladders(start, model, WAYS), records)
        for model, records in zip(sent.models, sent.records, strict=True)
    ]
    return int((np.concatenate(near) <= WITHIN).sum()), sum(map(len, sent.records))


def look(plan: Plan, federation: Federation) -> tuple[int, int]:
    """Sites one of whose pictures is recognised among all, from the first update; of how many."""
    start, model, rng = (
        initial_model(plan, federation.task),
        common_model(plan, federation.task),
        np.random.default_rng(0),
    )
    everybody = np.concatenate([samples.x for samples in federation.train])
    found, sent = 0, answers(plan, federation, start)
    for one, records in zip(sent.models, sent.records, strict=True):
        like = likeness(everybody, read_picture(model, start, one, federation.task.input_shape, rng))
        own = likeness(records, everybody[like.argmax()]).max()
        found += bool(like.max() > ALIKE and own > 0.999)
    return found, len(sent.models)


def tell_by_digits(plan: Plan, federation: Federation) -> bool:
    """Whether last digits tell sites that no gradient reaches from sites that one does."""
    silent = {name: np.zeros_like(array) for name, array in initial_model(plan, federation.task).items()}
    names = list(silent)
    live = silent | {names[1]: np.ones_like(silent[names[1]]), names[2]: np.ones_like(silent[names[2]])}
    absent, present = ([step_of(m[names[0]]) for m in answers(plan, federation, s).models] for s in (silent, live))
    return absent != present


def refusal(plan: Plan, federation: Federation) -> str:
    """Why a station would train on no ladder."""
    first, site = initial_model(plan, federation.task), federation.train[0]
    ladder = with_ladders(first, WAYS, np.random.default_rng(0))
    return sign_of_craft(ladder, first, plan, federation.task, site.x)


def table(cells: Sequence[Cell]) -> str:
    """A row for each set and defence."""
    heads = [
        "data",
        "defence",
        "accuracy",
        "FedDC, b = 10",
        "division",
        "likelihood: near, named",
        "server's AUC",
        "one ladder",
    ]
    heads += ["pictures", "last digits tell"]
    rows = [heads, ["---"] * len(heads), *map(_row, cells)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows).replace("| --- ", "|---").replace("--- |", "---|")


def _row(cell: Cell) -> list[str]:
    points = ["no finite model" if a is None else f"{100 * a:.1f}" for a in (cell.accuracy, cell.chained)]
    division = "-" if cell.division is None else f"{cell.division} of {cell.patients}"
    likelihood = "-" if isinstance(cell.likelihood, str) else "{}, {} of {}".format(*cell.likelihood)
    membership = "-" if cell.membership is None else "{:.2f} ({:.2f} to {:.2f})".format(*cell.membership)
    counts = ["-" if count is None else "{} of {}".format(*count) for count in (cell.ladder, cell.pictures)]
    digits = "-" if cell.digits is None else "yes" if cell.digits else "no"
    return [cell.data, cell.defence, *points, division, likelihood, membership, *counts, digits]


def measure(data: str) -> list[Cell]:
    """Every attack on a set, under every defence."""
    root = Path(os.environ["FEDSMALL_DATA"]) if "FEDSMALL_DATA" in os.environ else None
    cells = []
    for defence in DEFENCES:
        cells.append(attack(data, defence, root))
        print(f"{data}: {defence}", flush=True)
    return cells


def main(arguments: list[str]) -> None:
    """Attack the sets that are named (default: all), keep what was found, and print the table."""
    found = table(measured(arguments, Cell, KEPT, SETS, measure))
    fill(DOCS, {"attacks-and-defences": found}.get)
    print(found)


if __name__ == "__main__":
    main(sys.argv[1:])
