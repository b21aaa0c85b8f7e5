"""``fedsmall reproduce reading``: the table of reading.md is made by a command."""

import json

import pytest

from fedsmall.research.evidence import reading
from fedsmall.research.evidence.reading import keep, measure


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[reading.Measured]:
    monkeypatch.setattr(reading, "SCENARIOS", ("consortium_demo", "heart_disease"))
    monkeypatch.setattr(reading, "KAPPAS", (0.0, 1.0, 1e30))
    said: list[str] = []
    rows = measure(said.append, None, seeds=1)
    assert any("heart_disease: not run" in line for line in said)
    return rows


def test_nobody_is_read_in_the_scenario_for_real_sites_as_it_comes_along(few: list[reading.Measured]) -> None:
    _, blur, absurd = few

    assert blur.read["server"] == blur.read["neighbours"] == 0
    assert blur.accuracy is not None
    assert blur.accuracy > 0.85
    assert absurd.accuracy is None


def test_the_table_takes_its_place_in_the_page_and_leaves_the_rest(few: list[reading.Measured], tmp_path) -> None:
    page = tmp_path / "reading.md"
    after = "after\n<!-- table other -->\nkept\n<!-- end -->\n"
    page.write_text(f"before\n<!-- table reading -->\nold\n<!-- end -->\n{after}")
    (tmp_path / "evidence").mkdir()

    keep(few, tmp_path)
    once = page.read_text()
    keep(few, tmp_path)

    assert page.read_text() == once
    assert "old" not in once
    assert once.startswith("before\n")
    assert once.endswith(after)
    assert "| consortium demo | FedDC | 1 |" in once
    assert "no finite model" in once
    assert len(json.loads((tmp_path / "evidence" / "reading.json").read_text())) == 3
