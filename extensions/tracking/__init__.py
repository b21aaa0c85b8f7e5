"""Runs in TensorBoard or MLflow: each plan's settings, its metrics by round, and its model.

``track = "tensorboard"`` or ``"mlflow"`` in a scenario; both packages are optional. No file names go there.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w

from fedsmall.errors import PlanError
from fedsmall.sim.runs.folder import PACKAGES, PlanRun, Run, stem
from fedsmall.sim.runs.scenario import shown_scenario, without_files

Track = Callable[[Run, PlanRun], None]

SERVER = "MLFLOW_TRACKING_URI"  # as users of MLflow know it; without it the run's folder holds a database
LONGEST = 500  # letters of a setting's value


def tensorboard(folder: Path | None) -> Track:
    """What writes a plan that has just ended into event files. Raises PlanError where they cannot be written."""
    _check_tool("tensorboard", folder)
    return partial(_to_tensorboard, folder)


def mlflow(folder: Path | None) -> Track:
    """What writes a plan that has just ended to MLflow. Raises PlanError where it is not there, or has no place."""
    _check_tool("mlflow", folder, has_server=bool(os.environ.get(SERVER)))
    return partial(_to_mlflow, folder)


def _check_tool(tool: str, folder: Path | None, has_server: bool = False) -> None:
    if find_spec(tool) is None:
        raise PlanError(f'track = "{tool}" needs a package that is not installed: pip install "fedsmall[{tool}]"')
    if folder is None and not has_server:
        raise PlanError(f'track = "{tool}" writes into a folder, and this run has none; say out="runs/mine"')


def settings_of(run: Run, plan_run: PlanRun) -> dict[str, Any]:
    """The settings of a plan by dotted names: words, numbers and truths; files of a task are not named."""
    plan = plan_run.plan.model_dump(mode="json", exclude_none=True)
    return _flat(plan | {"task": without_files(plan["task"])}) | {"engine": str(run.about.get("engine"))}


def metrics_of(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation: "common/accuracy", "sites/accuracy_mean", "stop/loss"."""
    return {
        f"{whose}/{name}": float(value)
        for whose in ("common", "sites", "stop")
        for name, value in (evaluation.get(whose) or {}).items()
        if isinstance(value, int | float)
    }


def _to_tensorboard(folder: Path | None, run: Run, plan_run: PlanRun) -> None:
    from torch.utils.tensorboard import SummaryWriter

    assert folder is not None
    with SummaryWriter(str(folder / "tensorboard" / stem(plan_run))) as writer:
        for evaluation in plan_run.evaluations:
            for name, value in metrics_of(evaluation).items():
                writer.add_scalar(name, value, evaluation["t"])
        writer.add_text("scenario", f"```toml\n{tomli_w.dumps(shown_scenario(run.scenario))}```")
        final = {f"final/{name}": value for name, value in metrics_of(plan_run.row).items()}
        writer.add_hparams(settings_of(run, plan_run), final, run_name=".")


def _to_mlflow(folder: Path | None, run: Run, plan_run: PlanRun) -> None:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # what is run here is nobody else's business
    from mlflow.entities import Metric, Param

    client, experiment = _experiment(folder, run.scenario.name)
    tags = {"method": plan_run.label, "seed": str(plan_run.plan.seed), "fold": str(plan_run.plan.fold)}
    number = client.create_run(experiment, run_name=stem(plan_run), tags=tags).info.run_id
    now_ms = int(time.time() * 1000)
    numbers = [(name, n, e["t"]) for e in plan_run.evaluations for name, n in metrics_of(e).items()]
    numbers += [(f"final/{name}", number, plan_run.row["rounds"]) for name, number in metrics_of(plan_run.row).items()]
    metrics = [Metric(name, number, now_ms, t) for name, number, t in numbers]
    params = [Param(name, str(value)) for name, value in settings_of(run, plan_run).items()]
    for start in range(0, len(metrics), 1000):  # the most that MLflow takes in one go
        client.log_batch(number, metrics=metrics[start : start + 1000])
    for start in range(0, len(params), 100):
        client.log_batch(number, params=params[start : start + 100])
    client.log_text(number, tomli_w.dumps(shown_scenario(run.scenario)), "scenario.toml")
    package = run.folder / PACKAGES / stem(plan_run) if run.folder is not None else None
    if package is not None and package.is_dir():
        client.log_artifacts(number, str(package), "model")
    client.set_terminated(number, "KILLED" if plan_run.row["stopped"] else "FINISHED")


def _experiment(folder: Path | None, name: str) -> tuple[Any, str]:
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells that it makes its tables
    server, artifacts = os.environ.get(SERVER), None
    if not server:
        assert folder is not None
        place = (folder / "mlflow").resolve()
        place.mkdir(exist_ok=True)
        server, artifacts = f"sqlite:///{place}/mlflow.db", (place / "artifacts").as_uri()
    client = MlflowClient(tracking_uri=server)
    known = client.get_experiment_by_name(name)
    return client, known.experiment_id if known else client.create_experiment(name, artifacts)


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return {name: value[:LONGEST] if isinstance(value, str) else value for name, value in flat.items()}
