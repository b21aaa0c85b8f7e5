"""What TensorBoard and MLflow are told of a run, read back with their own readers."""

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.extensions import tracking
from fedsmall.package.store import read as read_package
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import PlanRun, Run
from fedsmall.sim.runs.scenario import build

SCENARIO = {"name": "tracked", "task": "breast_cancer", "sites": 3, "samples_per_site": 8, "rounds": 6}
METHODS = [{"name": "FedAvg", "recipe": {"lr": 0.2}}, {"name": "Standalone"}]


def ran(folder, tool):
    return execute(build({**SCENARIO, "evaluate_every": 2, "track": tool, "method": METHODS}), folder)


def course(one, name):
    return {each["t"]: each["common"][name] for each in one.evaluations if each["common"]}


def test_tensorboard_reads_back_scalars_settings_and_final_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    run = ran(tmp_path / "run", "tensorboard")

    fedavg = next(one for one in run.done if one.label == "FedAvg")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard" / "000-FedAvg-seed0")).Reload()
    told = {event.step: event.value for event in events.Scalars("common/accuracy")}
    assert told == pytest.approx(course(fedavg, "accuracy"), abs=1e-6)
    assert events.Scalars("final/common/loss")[0].value == pytest.approx(fedavg.row["common"]["loss"], rel=1e-6)
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["recipe.lr"].number_value == 0.2
    assert settings["method.name"].string_value == "FedAvg"
    alone = EventAccumulator(str(tmp_path / "run" / "tensorboard" / "001-Standalone-seed0")).Reload()
    assert "sites/accuracy_mean" in alone.Tags()["scalars"]
    assert "common/accuracy" not in alone.Tags()["scalars"]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, by what MLflow asks of it
def test_mlflow_reads_back_parameters_metrics_and_the_model(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv(tracking.SERVER, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    run = ran(tmp_path / "run", "mlflow")

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/run/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("tracked")
    runs = {each.data.tags["method"]: each for each in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"FedAvg", "Standalone"}
    mine, fedavg = runs["FedAvg"], next(one for one in run.done if one.label == "FedAvg")
    assert (mine.info.status, mine.data.params["recipe.lr"], mine.data.params["rounds"]) == ("FINISHED", "0.2", "6")
    history = client.get_metric_history(mine.info.run_id, "common/accuracy")
    assert {each.step: each.value for each in history} == course(fedavg, "accuracy")
    stored = read_package(client.download_artifacts(mine.info.run_id, "model", str(tmp_path)))
    for name, array in run.model_of(fedavg).items():
        assert np.array_equal(stored.weights[name], array)


def test_a_tool_that_is_not_installed_is_one_line_before_anything_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)

    with pytest.raises(PlanError, match=r'track = "mlflow" needs a package .* pip install "fedsmall\[mlflow\]"$'):
        ran(tmp_path / "run", "mlflow")

    assert not (tmp_path / "run").exists()


def test_a_run_without_a_folder_has_no_place_to_track(monkeypatch):
    pytest.importorskip("tensorboard")

    with pytest.raises(PlanError, match='this run has none; say out="runs/mine"'):
        ran(None, "tensorboard")


def test_another_tool_is_refused():
    with pytest.raises(PlanError, match=r"track: .*'tensorboard' or 'mlflow'"):
        build({**SCENARIO, "track": "wandb", "method": METHODS})


def test_no_tool_is_told_the_name_of_a_file():
    task = {"csv": "/home/essen/mueller.csv", "label": "y", "drop": ["id"]}
    scenario = build({**SCENARIO, "task": task, "method": METHODS})
    ended = PlanRun(0, scenario.plans()[0], {}, [], [])

    told = tracking.settings_of(Run(scenario, [ended.plan]), ended)

    assert "mueller" not in str(told)
    assert (told["task.csv"], told["task.label"], told["task.drop"]) == ("(your files)", "y", '["id"]')
