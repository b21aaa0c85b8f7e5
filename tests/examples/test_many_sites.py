"""The measurement over very many sites, over few; and that nothing grows with their square."""

import json
import tomllib
import tracemalloc

import pytest

from examples.many_sites import METHODS, main, scenario, write_data
from fedsmall.sim.report.html import write_report
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build


@pytest.mark.slow
def test_a_run_over_some_sites_is_measured_and_kept(tmp_path, capsys) -> None:
    kept = tmp_path / "many.json"

    main(["30", "20", "--json", str(kept)])

    rows = json.loads(kept.read_text())
    assert [row["method"] for row in rows] == list(METHODS)
    assert all((row["sites"], row["rounds"]) == (30, 20) for row in rows)
    assert all(row["gib"] > 0.1 and row["minutes"] > 0 and row["accuracy"] > 70 for row in rows)
    assert "FedDC" in capsys.readouterr().out


@pytest.mark.slow
def test_a_report_never_holds_a_number_for_every_pair_of_sites(tmp_path) -> None:
    sites = 4000
    write_data(tmp_path / "data.npz", sites)
    run = execute(build(tomllib.loads(scenario(tmp_path / "data.npz", sites, 3, METHODS["FedDC"]))), tmp_path / "run")

    tracemalloc.start()
    write_report(tmp_path / "run", [run], "many")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < sites * sites
