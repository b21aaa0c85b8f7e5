"""The survey's table of SecureBoost has a scenario for each of its sets, which run as they are written."""

import numpy as np
import pytest

pytest.importorskip("gmpy2")

from fedsmall.extensions.columns.simulation import load_columns
from tests import ROOT

FILES = sorted((ROOT / "examples" / "secureboost").glob("*.toml"))


def test_every_set_of_the_table_has_a_file():
    assert [path.stem for path in FILES] == ["epsilon", "give_credit", "higgs", "susy"]
    assert {plan.name for path in FILES for plan in load_columns(path).plans()} >= {"SecureBoost", "SecureBoostPlus"}


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_runs_as_it_is_written_on_small_tables(fedsmall, tmp_path, path):
    scenario = load_columns(path)
    rng = np.random.default_rng(0)
    columns, rows = rng.standard_normal((4, 60)), range(60)
    label = (columns[0] + columns[2] > 0).astype(int)
    (tmp_path / path.name).write_text(path.read_text())
    for party, own in (("active", (columns[:2], label)), ("passive", (columns[2:], None))):
        head = ["row", "a", "b"] + ([scenario.task.label] if own[1] is not None else [])
        lines = [[k, *own[0][:, k], *([own[1][k]] if own[1] is not None else [])] for k in rows]
        table = "\n".join(",".join(map(str, line)) for line in [head, *lines])
        (tmp_path / f"{path.stem}_{party}.csv").write_text(table)

    small = ("boosting.rounds=1", "boosting.depth=2", "seeds=[0]")
    code, said, _ = fedsmall("run", path.name, *(word for setting in small for word in ("--set", setting)))

    assert code == 0
    assert (
        "SecureBoostPlus made the trees of joined columns (Central), every split and every leaf: 1 of 1 seeds." in said
    )
