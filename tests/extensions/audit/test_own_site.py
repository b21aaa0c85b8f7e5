import json

import numpy as np
import pytest

from fedsmall.audit_log import digest_of
from fedsmall.clients.kept import Place, keep
from fedsmall.clients.runs import RUNS, check_same_data, keep_scaling, run_folder
from fedsmall.data.raw_site import agreed
from fedsmall.extensions.audit.own_site import hold_against
from fedsmall.models.registry import initial_model
from fedsmall.package.record import GLOBAL
from fedsmall.parts import SHARED_PART
from fedsmall.planning.tasks import load_site
from fedsmall.training.trainer import TrainInput, phase_at
from fedsmall.training.trees import cohort_for
from fedsmall.wire import ModelState
from tests.extensions.audit.worlds import plan_of


def hospital(folder, patients, seed=0, visits=1):
    """A table of patients, with some visits each, whose outcome has nothing to do with their five features."""
    rng = np.random.default_rng(seed)
    who = [i for i in range(patients) for _ in range(visits)]
    rows = [[f"p{i}", *(f"{v:.4f}" for v in rng.standard_normal(5)), str(i % 2)] for i in who]
    path = folder / "patients.csv"
    path.write_text("\n".join(map(",".join, [["patient", *"abcdey"], *rows])) + "\n")
    return path


def finished(folder, data, steps, **task):
    """A startup kit whose site keeps a run's model, trained for so many steps on its own patients."""
    task = {"csv": "", "label": "y", "classes": ["0", "1"], "drop": ["patient"], **task}
    plan = plan_of(task=task, sites=None, samples_per_site=None, recipe={"lr": 0.5}, model_options={"hidden": [64]})
    raw = load_site(plan, "bonn", data)
    scaling = agreed([raw])
    train, _ = raw.samples(scaling)
    trainer = cohort_for(plan, raw.task, ["bonn"], [train])
    stack = trainer.stack([ModelState(initial_model(plan, raw.task))])
    trainer.walk(stack, [phase_at(plan, [0], max(steps, 1), steps)], TrainInput())
    kit = {"consortium": "c", "site": "bonn", "address": "x:1", "expires": "2030-01-01"}
    (folder / "kit").mkdir()
    (folder / "kit" / "site.json").write_text(json.dumps(kit))
    keep_scaling(kept_in(folder), vars(scaling), scaling.mean.shape)
    model = {name: np.array(a) for name, a in stack.model_state(0).model.items()}
    agreed_on = {"run": "run", "id": "1", "plan": plan.model_dump(mode="json"), "sites": ["aachen", "bonn", "celle"]}
    (kept_in(folder) / "agreed.json").write_text(json.dumps(agreed_on))
    check_same_data(kept_in(folder), digest_of({"x": raw.train.x, "y": raw.train.y}))  # as at the handshake
    keep(Place(kept_in(folder), "run", raw, scaling, 3, plan.rounds), plan, GLOBAL, model)
    return folder / "kit"


def kept_in(folder):
    return run_folder(folder / "kit" / "state" / RUNS, "run")


def held(folder, data, steps, **task):
    finished(folder, data, steps, **task)
    return hold_against(kept_in(folder), "bonn", data)


def test_a_model_that_knows_its_patients_by_heart_is_found(tmp_path):
    data = hospital(tmp_path, 120)

    found = held(tmp_path, data, steps=600)

    assert (found.trained, found.held_out) == (90, 30)
    assert found.auc.low > 0.5
    assert "better than by chance" in found.lines()[1]


def test_a_model_that_has_seen_nobody_is_not_charged(tmp_path):
    data = hospital(tmp_path, 120)

    found = held(tmp_path, data, steps=0)

    assert found.auc.low < 0.5 < found.auc.high
    assert "No difference was seen" in found.lines()[1]


def test_eight_against_three_is_said_to_be_undecidable(tmp_path):
    data = hospital(tmp_path, 11)

    found = held(tmp_path, data, steps=5)

    assert found.trained + found.held_out == 11
    assert found.held_out <= 3
    assert "cannot be decided" in found.lines()[1]


def test_patients_are_counted_and_not_their_samples(tmp_path):
    data = hospital(tmp_path, 60, visits=4)

    found = held(tmp_path, data, steps=0, patient="patient")

    assert (found.trained, found.held_out) == (46, 14)
    assert found.auc.width > 0.25  # as of 14 against 46; 56 against 184 have .17


@pytest.mark.parametrize("run", ["run", "consortium/runs/run"])
def test_the_command_says_it_in_two_lines(fedsmall, tmp_path, run):
    data = hospital(tmp_path, 40)

    code, said, complained = fedsmall("site", "audit", run, "--data", data, "--kit", finished(tmp_path, data, steps=5))

    assert (code, complained) == (0, "")
    assert said.startswith("bonn: 30 patients that the model was trained on, 10 held out; AUC ")
    assert said.count("\n") == 2


def test_a_table_that_has_grown_since_is_refused_for_nobody_knows_whom_the_run_trained_on(fedsmall, tmp_path):
    data = hospital(tmp_path, 60)
    kit = finished(tmp_path, data, 3)
    data.write_text(data.read_text() + "p60,0.1,0.2,0.3,0.4,0.5,1\n")

    code, said, complained = fedsmall("site", "audit", "run", "--kit", kit, "--data", data)

    assert (code, said) == (2, "")
    assert complained == "fedsmall: the site's data have changed since this run began; start a new run\n"


def test_a_run_of_which_the_site_keeps_no_model_is_refused_in_one_line(fedsmall, tmp_path):
    data = hospital(tmp_path, 40)

    code, _, complained = fedsmall("site", "audit", "other", "--data", data, "--kit", finished(tmp_path, data, steps=0))

    assert (code, complained.count("\n")) == (2, 1)
    assert "keeps no such model: the run is not over, or the site was away at its end" in complained


def test_a_run_of_which_a_part_of_a_model_was_released_is_refused(fedsmall, tmp_path):
    data = hospital(tmp_path, 40)
    kit = finished(tmp_path, data, steps=0)
    known = json.loads((kept_in(tmp_path) / "agreed.json").read_text())
    known["plan"]["model"] = SHARED_PART
    (kept_in(tmp_path) / "agreed.json").write_text(json.dumps(known))

    code, _, complained = fedsmall("site", "audit", "run", "--data", data, "--kit", kit)

    assert (code, complained.count("\n")) == (2, 1)
    assert "have models of their own, of which only a part was released" in complained


def test_a_site_that_holds_nobody_out_is_told_so(fedsmall, tmp_path):
    data = hospital(tmp_path, 2)

    code, _, complained = fedsmall("site", "audit", "run", "--data", data, "--kit", finished(tmp_path, data, steps=0))

    assert code == 2
    assert "holds nobody out" in complained
