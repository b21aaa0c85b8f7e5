"""Finished runs made one for each data set, so that their methods can be compared seed by seed.

A run over real sites goes with the simulation of its scenario. Their plans differ in the names of files; so the same
patients are known by the names of the sites and how many each holds out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fedsmall.errors import PlanError
from fedsmall.evaluation.baselines import POOLED
from fedsmall.plan import Plan
from fedsmall.sim.runs.folder import PlanRun, Run, keyed
from fedsmall.sim.runs.scenario import without_files
from fedsmall.wire import Arrays


def merge(runs: Sequence[Run]) -> list[Run]:
    """A run for each data set, holding all that was run on it; PlanError where nothing was finished."""
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.real):  # what is known of the data, a simulation knows
        groups.setdefault(_key(run, runs), []).append(run)
    if not any(run.done for run in runs):
        raise PlanError("none of these runs has a finished plan, so there is nothing to compare")
    merged = [_merge_group(group) for group in groups.values()]
    names = [run.scenario.name for run in merged]
    for number, run in enumerate(merged):
        if names.count(names[number]) > 1:  # another data set's has its scenario's name
            name = f"{names[number]}, {number + 1} ({' and '.join(run.about['sources'])})"
            merged[number] = replace(run, scenario=run.scenario.model_copy(update={"name": name}))
    return merged


def data_of(plan: Plan) -> str:
    """What the data of a plan depend on, apart from the seed; what sites keep back for ``stop`` is the method's way."""
    return plan.model_copy(update={"seed": 0, "fold": 0, "stop": None}).data_key


def _key(run: Run, runs: Sequence[Run]) -> str:
    data = data_of(run.plans[0])
    if not run.real:
        return data
    played = {data_of(other.plans[0]) for other in runs if not other.real and of_same_patients(run, other)}
    return played.pop() if len(played) == 1 else data


def of_same_patients(real: Run, played: Run) -> bool:
    """Whether a simulation is of the patients of a run over real sites: same task but for files, sites and counts."""
    plans = (run.plans[0].model_copy(update={"task": without_files(run.plans[0].task)}) for run in (real, played))
    if len({*map(data_of, plans)}) > 1:
        return False
    sites = real.done[0].row["real"]["sites"]
    counts = {name: sum(of["held_out"]) for name, of in (played.about.get("class_counts") or {}).items()}
    held_out = {name: of["held_out"] for name, of in sites.items() if of["held_out"]}
    return set(counts) == set(sites) and all(counts[name] == count for name, count in held_out.items())


def _merge_group(group: Sequence[Run]) -> Run:
    first, names = group[0], _names(group)
    labels = {(plan.method.label, name) for run, name in zip(group, names, strict=True) for plan in run.plans}
    shared = {label for label, count in Counter(label for label, _ in labels).items() if count > 1}
    done: list[PlanRun] = []
    predictions: Arrays = {}
    for run, own_name in zip(group, names, strict=True):
        for plan_run in run.done:
            label = f"{plan_run.label} ({own_name})" if plan_run.label in shared else plan_run.label
            done.append(replace(plan_run.labelled(label), index=len(done)))
            predictions |= keyed(done[-1], run.predictions_of(plan_run))
            predictions |= keyed(regression := plan_run.labelled(POOLED), run.predictions_of(regression))
            if (model := run.model_of(plan_run)) is not None:
                first.models[len(done) - 1] = model
    name = first.scenario.name if len(group) == 1 else " and ".join(dict.fromkeys(names))
    scenario = first.scenario.model_copy(update={"name": name})
    failed = [failure for run in group for failure in run.failed]
    about = {**first.about, "failed": failed, "sources": names, "places": [run.place for run in group]}
    return Run(scenario, [plan_run.plan for plan_run in done], None, done, about, dict(first.models), predictions)


def _names(group: Sequence[Run]) -> list[str]:
    """A name for each run: its folder's, and what tells it from another of that name.

    A run over real sites has one seed: those that differ in nothing else are one method's, by their scenario's name.
    """
    names, seen, seeds = list[str](), Counter[str](), dict[tuple[bool, str], list[int]]()
    no_seed = {"seed": 0, "route_seed": None}
    plans = [(run.real, run.plans[0].model_copy(update=no_seed).model_dump_json()) for run in group]
    for run, plan in zip(group, plans, strict=True):
        seeds.setdefault(plan, []).append(run.plans[0].seed)
    for run, plan in zip(group, plans, strict=True):
        is_one = run.real and len(set(seeds[plan])) == len(seeds[plan]) > 1
        name = (run.scenario.name if is_one or run.folder is None else run.folder.name) + ", real sites" * run.real
        seen[name] += not is_one
        names.append(name if seen[name] <= 1 else f"{name} {seen[name]}")
    return names
