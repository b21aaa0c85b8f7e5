"""Every attack of ours against every defence on five sets, and what each defence costs.

    FEDSMALL_DATA=... python -m examples.attacks_and_defences "40 x 4"   # or other sets; kept in docs/evidence
    python -m examples.attacks_and_defences --show                       # the table of what is kept, in the page, too

FedAvg that averages after every round, where the server sees most; the server is the attacker. It knows the plan, its
seed and all that was sent; under secure sums, the sums. Sealing is for models that are handed over: its rows are
FedDC's, of which the server sees what comes to an average after ten sites. The ladder and the picture are of what comes
back first. Nobody looks at the models that come but under "limits", the first policy of a site and nothing else: it
refuses plans and crafted models, and adds noise where its own attack reads somebody.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from examples.kept import measured
from fedsmall.aggregation.sums import with_sealed_handovers
from fedsmall.algorithm.departing import make_private
from fedsmall.clients.incoming import inner_inputs, sign_of_craft
from fedsmall.clients.policy import Policy
from fedsmall.clients.self_check import blur_update
from fedsmall.data.federation import Federation, Samples
from fedsmall.errors import PolicyError, ReplyError
from fedsmall.evaluation.metrics import evaluate
from fedsmall.extensions.audit import federations
from fedsmall.extensions.audit.attack import audit
from fedsmall.extensions.audit.by_likelihood import explain
from fedsmall.extensions.audit.federations import side_by_side, world_as_it_is, world_of
from fedsmall.models.registry import build_network, initial_model
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import parameter_count
from fedsmall.privacy.reading import records_read
from fedsmall.research.attacks.crafted import distances_to_records, read_ladders, with_ladders
from fedsmall.research.attacks.floats import step_of
from fedsmall.research.attacks.pictures import likeness, read_picture
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.scenario import build
from fedsmall.training.stack import Rows, Stack
from fedsmall.training.trainer import Phase, TrainInput
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Action
from fedsmall.wire import MODEL, Arrays, ModelState, join, split

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
    "sealed": {"sealed": True, "blur": 0.0},
    "secure sums": {"sealed": True, "secure": True, "blur": 0.0},
    "limits": {"blur": 0.0},
}
POLICY = Policy()
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
    what leaves tell a site without any gradient from one with, ``refused`` why a site takes no ladder. Accuracies
    are words where a site's first policy refuses the plan, so that nothing leaves, or where there is none to state.
    """

    data: str
    defence: str
    accuracy: float | str | None
    chained: float | str | None
    patients: int
    division: int | None
    likelihood: tuple[int, int, int] | str
    membership: tuple[float, float, float] | None
    ladder: tuple[int, int] | None
    pictures: tuple[int, int] | None
    digits: bool | None
    refused: str


class Sent(NamedTuple):
    """What sites sent after a model that came to all of them, as the server sees it: one model each, or one sum.

    ``patients`` are the places in ``everybody`` of those that each was trained on.
    """

    start: Arrays
    models: Sequence[Arrays]
    patients: Sequence[np.ndarray]
    everybody: np.ndarray


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
    if defence == "limits":
        return attack_sites_with_limits(data, root)
    chained, is_sealed = plan_of(data, defence, CHAIN), defence == "sealed"
    plan = chained if is_sealed else plan_of(data, defence)
    federation = build_federation(plan, root)
    is_flat = plan.model == "mlp"
    return Cell(
        data,
        defence,
        "-" if is_sealed else accuracy(plan, root),
        accuracy(chained, root),
        sum(map(len, federation.train)),
        run_plan(plan, federation, "cohort", exposed=True).read.get("server"),
        "what is between two averages is sealed" if is_sealed else likelihood(plan, root),
        membership(plan, root),
        climb(plan, federation) if is_flat else None,
        None if is_flat else look(plan, federation),
        tell_by_digits(plan, federation) if is_flat and plan.privacy.counted else None,
        refusal(plan, federation) if is_flat else "",
    )


def attack_sites_with_limits(data: str, root: Path | None) -> Cell:
    """Try every attack on sites that have their first policy, and a plan that has no defence."""
    plan = plan_of(data, "limits")
    federation = build_federation(plan, root)
    patients, chained = sum(map(len, federation.train)), why_refused(plan_of(data, "limits", CHAIN), federation)
    ladder = refusal(plan, federation) if plan.model == "mlp" else ""
    if why := why_refused(plan, federation):
        return Cell(data, "limits", why, chained, patients, None, why, None, None, None, None, ladder)
    with as_sites_send(federation, federation.train):
        found = likelihood(plan, root)
        runs = [run_at_sites(plan.model_copy(update={"seed": seed}), root) for seed in range(SEEDS)]
    world = world_of(plan, root)
    with as_sites_send(federation, world.samples(np.ones(int(world.sizes.sum()), dtype=bool))):
        known = membership(plan, root)
    return Cell(
        data,
        "limits",
        float(np.mean([right for right, _ in runs])),
        chained,
        patients,
        runs[0][1],
        found,
        known,
        (0, patients) if ladder else climb(plan, federation),
        None,
        None,
        ladder,
    )


def why_refused(plan: Plan, federation: Federation) -> str:
    """By which of its limits a site with its first policy refuses a plan; "" where it takes it."""
    sites, numbers = len(federation.names), parameter_count(plan, federation.task)
    try:
        for site in federation.train:
            sizes = {"samples": len(site), "sites": sites, "numbers": numbers}
            POLICY.check_plan(with_sealed_handovers(plan, sites), federation.task.name, has_identity=True, **sizes)
    except PolicyError as error:
        return f"refused{re.findall(r' [(][a-z_]+[)]', str(error))[0]}"
    return ""


@contextmanager
def as_sites_send(federation: Federation, samples: Sequence[Samples]) -> Iterator[None]:
    """While within, models leave sites, who have these ``samples``, as they are sent under the first policy.

    What a site's attack on itself reads is noised until it reads nobody. In federations of an audit patients who are
    not there are looked for, too; they are not found.
    """
    records = {name: site.x.reshape(len(site), -1) for name, site in zip(federation.names, samples, strict=True)}

    def leave(plan: Plan, stack: Stack, received: Stack, names: Sequence[str], t: int) -> None:
        starts, models = Rows(received.state), Rows(stack.state)
        for row, name in enumerate(names):
            start, model, x = starts.row(row), models.row(row), records[name.split("/")[-1]]
            inner = inner_inputs(start, plan, federation.task, x)
            key = f"{name} {t}".encode()
            sent = blur_update(join(**{MODEL: start}), join(**{MODEL: model}), plan, x, 1, POLICY, key, inner).sent
            for part, array in split(sent, MODEL).items():
                stack.state[part][row] = torch.from_numpy(np.array(array))

    with patch.object(federations, "make_private", leave):
        yield


def run_at_sites(plan: Plan, root: Path | None) -> tuple[float, int]:
    """The global model's accuracy after a run of an audit's federations, and how many patients a division reads."""
    federation = build_federation(plan, root)
    task, records = federation.task, [samples.x.reshape(len(samples), -1) for samples in federation.train]
    is_read = [np.zeros(len(site), dtype=bool) for site in records]
    for step in side_by_side(plan, world_as_it_is(plan, federation), np.zeros((1, 0), dtype=bool)):
        received, sent = Rows(step.received), Rows(step.sent)
        for row, place in enumerate(step.at):
            is_read[place] |= records_read(received.row(row), sent.row(row), records[place])
        last = step.global_models
    state = {name: tensor[0] for name, tensor in last.items()}
    outputs = torch.func.functional_call(build_network(plan, task), state, (torch.from_numpy(federation.test.x),))
    right = evaluate(outputs.detach().numpy(), federation.test.y, task)["accuracy"]
    return right, int(sum(map(np.count_nonzero, is_read)))


def likelihood(plan: Plan, root: Path | None) -> tuple[int, int, int] | str:
    """How many patients of two sites came near, were named, and are there; or why that is not tried."""
    found = explain(plan, root)
    return found if isinstance(found, str) else (found.close, found.named, found.patients)


def membership(plan: Plan, root: Path | None) -> tuple[float, float, float] | None:
    """The server's AUC, with its interval, of who was in the data: by all that it sees of some federations."""
    views = {finding.view: finding.auc for finding in audit(plan, world_of(plan, root), RUNS)}
    party = "commons" if plan.method.hidden else "sealed" if plan.privacy.sealed else "server"
    return (views[party].value, views[party].low, views[party].high) if party in views else None


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
    """What the server sees first of ``start``, sent to every site, under the plan's privacy: a few models, or the sum.

    In a chain whose models are sealed that is after as many sites as there are between two averages.
    """
    names, samples = federation.names, federation.train
    trainer = cohort_for(plan, federation.task, names, samples)
    stack = trainer.stack([ModelState(start)]).rows(np.zeros(len(names), dtype=np.int64))
    everybody = np.concatenate([trainer.seen(site.x) for site in samples])
    of_site = np.split(np.arange(len(everybody)), np.cumsum([len(site) for site in samples])[:-1])
    is_first, memory, visited = True, {}, [np.array([], dtype=np.int64) for _ in names]
    for comm_round, at in journey(plan, len(names)):
        received, is_last = stack.clone(), comm_round.action is Action.AGGREGATE
        phase = Phase(at, comm_round.t, comm_round.rounds, is_first, is_last)
        memory = trainer.walk(stack, [phase], TrainInput(np.full(len(names), is_first), {}, memory)).memory
        make_private(plan, stack, received, [names[place] for place in at], comm_round.t)
        for row, place in enumerate(at):
            visited[row] = np.union1d(visited[row], of_site[place])
        is_first = False
        if is_last or not plan.privacy.sealed:
            break
    models = Rows(stack.state).arrays()
    each = [{name: array[row] for name, array in models.items()} for row in range(len(names))]
    if not plan.privacy.secure:
        return Sent(start, each[:SITES], visited[:SITES], everybody)
    total = {name: np.mean([model[name] for model in each], axis=0, dtype=np.float64) for name in each[0]}
    return Sent(start, [total], [np.arange(len(everybody))], everybody)


def climb(plan: Plan, federation: Federation) -> tuple[int, int]:
    """Patients who are read from one order with a ladder, of how many."""
    start = with_ladders(initial_model(plan, federation.task), WAYS, np.random.default_rng(0))
    sent = answers(plan, federation, start)
    read = np.zeros(len(sent.everybody), dtype=bool)
    for model, places in zip(sent.models, sent.patients, strict=True):
        found = read_ladders(start, model, WAYS)
        read[places] |= distances_to_records(found, sent.everybody[places]) <= WITHIN
    return int(read.sum()), len(np.unique(np.concatenate(sent.patients)))


def look(plan: Plan, federation: Federation) -> tuple[int, int]:
    """Sites one of whose pictures is recognised among all, from the first update; of how many."""
    start, model = initial_model(plan, federation.task), build_network(plan, federation.task)
    found, sent, rng = 0, answers(plan, federation, start), np.random.default_rng(0)
    for one, places in zip(sent.models, sent.patients, strict=True):
        like = likeness(sent.everybody, read_picture(model, start, one, federation.task.input_shape, rng))
        own = likeness(sent.everybody[places], sent.everybody[like.argmax()]).max()
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
    """Why a site would train on no ladder."""
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
    points = [_points(found) for found in (cell.accuracy, cell.chained)]
    division = "-" if cell.division is None else f"{cell.division} of {cell.patients}"
    likelihood = "-" if isinstance(cell.likelihood, str) else "{}, {} of {}".format(*cell.likelihood)
    membership = "-" if cell.membership is None else "{:.2f} ({:.2f} to {:.2f})".format(*cell.membership)
    counts = ["-" if count is None else "{} of {}".format(*count) for count in (cell.ladder, cell.pictures)]
    digits = "-" if cell.digits is None else "yes" if cell.digits else "no"
    return [cell.data, cell.defence, *points, division, likelihood, membership, *counts, digits]


def _points(accuracy: float | str | None) -> str:
    return "no finite model" if accuracy is None else accuracy if isinstance(accuracy, str) else f"{100 * accuracy:.1f}"


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
