import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedsmall.data.raw_site import agreed
from fedsmall.extensions.audit.own_site import hold_against
from fedsmall.models.registry import initial_model
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.planning.tasks import load_site
from fedsmall.training.trainer import TrainInput, phase_at
from fedsmall.training.trees import cohort_for
from fedsmall.wire import ModelState
from tests.extensions.audit.worlds import plan_of

SITES = ("aachen", "bonn", "celle")


def hospital(folder, patients, seed=0):
    """A table of patients whose outcome has nothing to do with their five features."""
    rng = np.random.default_rng(seed)
    rows = [",".join([*(f"{v:.4f}" for v in rng.standard_normal(5)), str(i % 2)]) for i in range(patients)]
    path = folder / "patients.csv"
    path.write_text("a,b,c,d,e,y\n" + "\n".join(rows) + "\n")
    return path


def finished(folder, data, steps):
    """The folder of a run whose model has trained for so many steps on this site's patients."""
    task = {"csv": "", "label": "y", "classes": ["0", "1"]}
    plan = plan_of(task=task, sites=None, samples_per_site=None, recipe={"lr": 0.5}, model_options={"hidden": [64]})
    raw = load_site(plan, "bonn", data)
    scaling = agreed([raw])
    train, _ = raw.samples(scaling)
    trainer = cohort_for(plan, raw.task, ["bonn"], [train])

    stack = trainer.stack([ModelState(initial_model(plan, raw.task))])
    trainer.walk(stack, [phase_at(plan, [0], max(steps, 1), steps)], TrainInput())
    run = folder / "run"
    run.mkdir()
    save_file({name: np.array(a) for name, a in stack.model_state(0).model.items()}, run / "model.safetensors")
    (run / "sheet.json").write_text(RunSheet(run="run", plan=plan, sites=SITES).model_dump_json())
    (run / "scaling.json").write_text(json.dumps({name: a.tolist() for name, a in vars(scaling).items()}))
    return run


def test_a_model_that_knows_its_patients_by_heart_is_found(tmp_path):
    data = hospital(tmp_path, 120)

    found = hold_against(finished(tmp_path, data, steps=600), "bonn", data)

    assert (found.trained, found.held_out) == (90, 30)
    assert found.auc.low > 0.5
    assert "better than by chance" in found.lines()[1]


def test_a_model_that_has_seen_nobody_is_not_charged(tmp_path):
    data = hospital(tmp_path, 120)

    found = hold_against(finished(tmp_path, data, steps=0), "bonn", data)

    assert found.auc.low < 0.5 < found.auc.high
    assert "No difference was seen" in found.lines()[1]


def test_eight_against_three_is_said_to_be_undecidable(tmp_path):
    data = hospital(tmp_path, 11)

    found = hold_against(finished(tmp_path, data, steps=5), "bonn", data)

    assert found.trained + found.held_out == 11
    assert found.held_out <= 3
    assert "cannot be decided" in found.lines()[1]


def test_the_command_says_it_in_two_lines(fedsmall, tmp_path):
    data = hospital(tmp_path, 40)
    run = finished(tmp_path, data, steps=5)

    code, said, complained = fedsmall("site", "audit", run, "--data", data, "--site", "bonn")

    assert (code, complained) == (0, "")
    assert said.startswith("bonn: 30 patients that the model was trained on, 10 held out; AUC ")
    assert said.count("\n") == 2


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("sheet.json", "holds no run over real sites"),
        ("scaling.json", "holds no scaling.json"),
        ("model.safetensors", "the run is not finished"),
    ],
)
def test_what_is_missing_is_told_in_one_line(fedsmall, tmp_path, broken, told):
    data = hospital(tmp_path, 40)
    run = finished(tmp_path, data, steps=0)
    (run / broken).unlink()

    code, _, complained = fedsmall("site", "audit", run, "--data", data, "--site", "bonn")

    assert (code, complained.count("\n")) == (2, 1)
    assert told in complained


def test_a_site_that_was_not_in_the_run_and_a_model_of_another_are_refused(fedsmall, tmp_path):
    data = hospital(tmp_path, 40)
    run = finished(tmp_path, data, steps=0)

    stranger = fedsmall("site", "audit", run, "--data", data, "--site", "essen")
    save_file({"0.weight": np.zeros((2, 2), np.float32)}, run / "model.safetensors")
    other = fedsmall("site", "audit", run, "--data", data, "--site", "bonn")

    for (code, _, complained), told in ((stranger, "was not one of 'essen'"), (other, "is not that of the run's plan")):
        assert (code, complained.count("\n")) == (2, 1)
        assert told in complained


def test_a_site_that_holds_nobody_out_is_told_so(fedsmall, tmp_path):
    data = hospital(tmp_path, 2)
    run = finished(tmp_path, data, steps=0)

    code, _, complained = fedsmall("site", "audit", run, "--data", data, "--site", "bonn")

    assert code == 2
    assert "holds nobody out" in complained
