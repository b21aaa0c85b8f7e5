"""Finished runs made one for each data set, so that their methods can be compared seed by seed."""

from collections.abc import Sequence

from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.wire import Arrays
from sim.runs.folder import PlanRun, Run, prediction_key


def merge(runs: Sequence[Run]) -> list[Run]:
    """One run for each data set, holding all that was run on it; a label that occurs twice gets its run's name.

    Two runs rest on the same data where task, partition and sizes agree. Raises PlanError where nothing was finished.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(data_of(run.plans[0]), []).append(run)
    if not any(run.done for run in runs):
        raise PlanError("none of these runs has a finished plan, so there is nothing to compare")
    return [_merged(group) for group in groups.values()]


def data_of(plan: Plan) -> str:
    """What the data of a plan depend on, apart from the seed."""
    return plan.model_copy(update={"seed": 0, "fold": 0}).data_key


def _merged(group: Sequence[Run]) -> Run:
    first = group[0]
    labels = [{plan.method.label for plan in run.plans} for run in group]
    shared = {label for own in labels for label in own if sum(label in each for each in labels) > 1}
    done: list[PlanRun] = []
    predictions: Arrays = {}
    for run in group:
        for one in run.done:
            label = f"{one.label} ({_name(run)})" if one.label in shared else one.label
            method = one.plan.method.model_copy(update={"label": label})
            plan = one.plan.model_copy(update={"method": method})
            done.append(PlanRun(len(done), plan, {**one.row, "label": label}, one.evaluations, one.events))
            told = run.predictions_of(one).items()
            predictions |= {f"{prediction_key(done[-1])}/{name}": array for name, array in told}
            if (model := run.model_of(one)) is not None:
                first.models[len(done) - 1] = model
    name = first.scenario.name if len(group) == 1 else " and ".join(dict.fromkeys(map(_name, group)))
    scenario = first.scenario.model_copy(update={"name": name})
    failed = [each for run in group for each in run.failed]
    about = {**first.about, "failed": failed, "sources": [_name(run) for run in group]}
    return Run(scenario, [one.plan for one in done], None, done, about, dict(first.models), predictions)


def _name(run: Run) -> str:
    return run.folder.name if run.folder is not None else run.scenario.name
