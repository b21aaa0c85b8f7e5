"""Every attack against every defence: a small set, and what is kept."""

import pytest

from examples import attacks_and_defences
from examples.attacks_and_defences import DEFENCES, KEPT, SETS, Cell, accuracy, attack, plan_of, run_at_sites, table
from fedsmall.planning.tasks import build_federation
from fedsmall.research.evidence.items import DOCS
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.files import read_json

SMALL = {"task": "breast_cancer", "model_options": {"hidden": [64]}, "rounds": 2, "evaluate_every": 2}
SMALL |= {"sites": 4, "samples_per_site": 8, "batch": 8}


@pytest.mark.thorough
def test_what_is_read_without_a_defence_is_not_read_under_any(monkeypatch):
    monkeypatch.setitem(SETS, "small", SMALL)
    monkeypatch.setattr(attacks_and_defences, "SEEDS", 1)
    monkeypatch.setattr(attacks_and_defences, "RUNS", 8)

    cells = {defence: attack("small", defence, None) for defence in DEFENCES}

    bare = cells.pop("none")
    assert bare.division
    assert bare.ladder[0]
    assert all(not cell.division for cell in cells.values())
    assert all(not cell.ladder[0] for name, cell in cells.items() if name not in ("sealed", "secure sums"))
    assert all(cell.digits is False for name, cell in cells.items() if name.startswith("epsilon"))
    assert all(cell.refused for cell in cells.values())
    assert table([bare]).count("\n") == 2
    assert cells["limits"].chained == "refused (least_blur)"
    assert cells["limits"].accuracy > 0.5


def test_a_run_of_the_audits_federations_is_the_engines(monkeypatch):
    monkeypatch.setitem(SETS, "small", SMALL)
    monkeypatch.setattr(attacks_and_defences, "SEEDS", 1)
    plan = plan_of("small", "none")

    right, read = run_at_sites(plan, None)

    assert right == accuracy(plan, None)
    assert read == run_plan(plan, build_federation(plan), "cohort", exposed=True).read["server"] > 0


def kept() -> list[Cell]:
    return [Cell(**cell) for cell in read_json(KEPT)]


def test_the_attacks_are_strong_where_nothing_defends():
    bare = {cell.data: cell for cell in kept() if cell.defence == "none"}

    assert set(bare) == set(SETS)
    assert all(cell.division or cell.pictures for cell in bare.values())
    assert any(cell.likelihood[0] for cell in bare.values() if not isinstance(cell.likelihood, str))
    assert all(cell.ladder is None or cell.ladder[0] for cell in bare.values())
    assert any(cell.membership[1] > 0.6 for cell in bare.values())
    assert all(cell.pictures is None or cell.pictures[0] for cell in bare.values())


def test_nobody_is_read_under_a_limit_of_exposure_or_an_epsilon():
    held = [cell for cell in kept() if cell.defence.startswith(("exposure", "epsilon"))]

    assert len(held) == 4 * len(SETS)
    assert not any(cell.pictures and cell.pictures[0] for cell in held)
    assert not any(cell.division for cell in held)
    assert not any(cell.ladder and cell.ladder[0] for cell in held)
    assert not any(cell.likelihood[0] for cell in held if not isinstance(cell.likelihood, str))
    assert not any(cell.digits for cell in held)


def test_a_site_refuses_every_ladder_and_sends_nothing_that_a_division_reads():
    limits = [cell for cell in kept() if cell.defence == "limits"]

    assert all(cell.refused for cell in kept() if cell.ladder is not None)
    assert len(limits) == len(SETS)
    assert all(isinstance(cell.accuracy, str) or cell.division == cell.ladder[0] == 0 for cell in limits)


def test_the_page_holds_the_table_of_what_is_kept():
    assert table(kept()) in (DOCS / "threats.md").read_text()
