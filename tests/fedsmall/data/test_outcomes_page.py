"""The page on outcomes that are no classes is run as a reader would run it, from top to bottom in an empty folder."""

import re
import tomllib

import numpy as np
import pytest

from fedsmall.methods import METHODS
from fedsmall.sim import run
from tests import ROOT

PAGE = "\n".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("outcomes", "survival"))


@pytest.mark.thorough
def test_the_scenarios_of_the_page_run_and_predict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    variables: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "outcomes.md", "exec"), variables)

    found = {}
    for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / "scenario.toml").write_text(block)
        result = run("scenario.toml", progress=False)
        found[tomllib.loads(block)["name"]] = result

    numbers, times = found["pressure"], found["survival"]
    assert numbers.run.done[0].row["common"]["r2"] > 0.5
    said = numbers.predict("patients.csv")
    assert np.corrcoef(said["pressure"], [float(row.rpartition(",")[2]) for row in variables["rows"]])[0, 1] > 0.7
    graded = found["stages"].predict("staged.csv")
    assert found["stages"].run.done[0].row["common"]["kappa"] > 0.5
    np.testing.assert_allclose(graded[["p_0", "p_I", "p_II", "p_III"]].sum(axis=1), 1)
    labels = found["findings"].predict("scans.csv")
    assert found["findings"].run.done[0].row["common"]["auc"] > 0.8
    assert list(labels.columns)[:2] == ["p_edema", "p_effusion"]
    curves = times.predict("followed.csv")
    assert [name for name in curves if name.startswith("survival_")] == [f"survival_{t}" for t in (12, 24, 36, 60)]


def test_the_tables_of_the_page_hold_the_methods_of_the_scenarios():
    for name in ("diabetes", "gbsg2", "diabetes_grades", "digit_properties"):
        scenario = tomllib.loads((ROOT / "sim" / "scenarios" / f"{name}.toml").read_text())
        labels = [each.get("label", each["name"]) for each in scenario["method"]]
        table = PAGE.partition(f"**{name}**")[2].partition("\n\n")[2].partition("\n\n")[0]

        assert all(f"| {label} |" in table for label in labels)
        assert {each["name"] for each in scenario["method"]} <= set(METHODS)
