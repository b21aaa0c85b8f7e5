"""Notebooks run from first cell to last, as a reader would run them, and show what is kept in their files."""

import json
import os
import re
import subprocess
import sys
import tempfile

import pytest

from tests import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"
SIMULATED = ("first_federation", "images_at_ten_hospitals", "when_does_travelling_pay")
REAL = "from_simulation_to_real_sites"
LARGEST = 200_000
IMPORT = ("from fedsmall.sim import run", "from fedsmall import run", "from fedsmall.sim import run")
WITHIN = {"abs": 0.02, "rel": 0.02}  # a kernel of another processor may round so that one sample is judged otherwise


@pytest.fixture(scope="module")
def keeper():
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbclient")
    from examples import keep_notebooks

    return keep_notebooks


@pytest.fixture(scope="module")
def run(keeper, tmp_path_factory):
    """Run a notebook in an empty folder, once: its kept cells, and those of now, and the folder."""
    known = {}

    def once(name):
        if name not in known:
            import nbformat

            folder = tmp_path_factory.mktemp(name[:5])
            kept = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
            known[name] = kept.cells, keeper.tidied(keeper.executed(NOTEBOOKS / f"{name}.ipynb", folder)).cells, folder
        return known[name]

    return once


def shown(cell, kind):
    return [output.data[kind] for output in cell.outputs if kind in output.get("data", {})]


def assert_kept(keeper, kept, now, apart=0.0):
    """The same words, pictures and numbers, but for a share ``apart`` of these, which are half a point away at most."""
    for before, after in zip(kept, now, strict=True):
        told, again = keeper.told(before), keeper.told(after)
        assert [(words, pictures) for words, _, pictures in told] == [(w, pictures) for w, _, pictures in again]
        for (_, numbers, _), (_, others, _) in zip(told, again, strict=True):
            pairs = list(zip(numbers, others, strict=True))
            off = [(a, b) for a, b in pairs if a != pytest.approx(b, **WITHIN)]
            assert len(off) <= apart * len(pairs), off
            assert all(a == pytest.approx(b, abs=0.5) for a, b in off)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIMULATED)
def test_a_notebook_shows_what_is_kept_in_its_file(name, run, keeper):
    kept, now, _ = run(name)

    # convolutions have other kernels on other processors, by which a few test images are judged otherwise
    assert_kept(keeper, kept, now, apart=0.2 if name.startswith("images") else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIMULATED)
def test_a_run_shows_one_bar_that_is_gone_at_its_end_and_no_lines(name, run):
    _, now, _ = run(name)

    streams = [output.text for cell in now for output in cell.get("outputs", []) if output.output_type == "stream"]
    assert all(text.startswith("Writing ") and text.count("\n") == 1 for text in streams)


@pytest.mark.slow
def test_the_first_federation_leaves_a_report_and_draws_figure_table_and_animation(run):
    _, now, folder = run("first_federation")

    html, png = (
        [each for cell in now if cell.cell_type == "code" for each in shown(cell, kind)]
        for kind in ("text/html", "image/png")
    )
    assert (folder / "runs" / "mine" / "report.html").exists()
    assert any("<table>" in each and "<svg role=" in each for each in html)
    assert any("p_malignant" in each and "truth" in each for each in html)
    assert len(png) == 2
    assert any(
        "@keyframes" in each for cell in now if cell.cell_type == "code" for each in shown(cell, "image/svg+xml")
    )


@pytest.mark.slow
def test_travelling_is_shown_where_it_pays_and_where_it_does_not(run):
    _, now, _ = run("when_does_travelling_pay")
    few, many, leads = (rows_of(shown(cell, "text/html")[-1]) for cell in now if "round(3)" in cell.source)

    assert few["FedAvg, same period"]["lead_low"] > 0.05
    assert few["FedAvg, same traffic"]["lead_low"] < 0
    assert few["FedAvg, same traffic"]["communication_rounds"] == few["FedDC"]["communication_rounds"] == 100
    assert many["FedAvg, same period"]["lead_low"] < 0.005
    assert set(leads) == {"FedAvg, same period", "FedAvg, same traffic"}


def rows_of(html):
    """The rows of pandas' table by the last of their names: numbers by the names of columns."""
    heads, *rows = re.findall(r"<tr.*?</tr>", html, re.DOTALL)
    columns = re.findall(r"<th>(\w+)</th>", heads)
    found = {}
    for row in rows:
        name, values = re.findall(r"<th[^>]*>([^<]+)</th>", row)[-1], re.findall(r"<td>([^<]+)</td>", row)
        found[name] = dict(zip(columns, map(float, values), strict=True))
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.needs("nginx")
def test_the_way_to_real_sites_ends_with_equal_bits(keeper, tmp_path_factory):
    import nbformat

    tmp_path = tmp_path_factory.mktemp("n")  # a station's socket allows no long path

    kept = nbformat.read(NOTEBOOKS / f"{REAL}.ipynb", as_version=4)
    try:
        now = keeper.tidied(keeper.executed(NOTEBOOKS / f"{REAL}.ipynb", tmp_path)).cells
    finally:
        for log in tmp_path.glob("*.log"):
            print(log.name, log.read_text())  # of a cell that failed
        for kit in (tmp_path / "consortium" / "kits").glob("*"):
            fedsmall(tmp_path, "site", "down", "--kit", str(kit))
        fedsmall(tmp_path, "server", "down")

    assert_kept(keeper, kept.cells, now)
    bits = next(shown(cell, "text/html")[0] for cell in now if "equal bits" in cell.source)
    assert bits.count("True") == 4
    assert "False" not in bits
    assert "Nothing was changed" in (tmp_path / "trial-at-essen.html").read_text()


def fedsmall(folder, *words):
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-m", "fedsmall.sim.cli.app", *words], cwd=folder, env=own, check=False, timeout=120
    )


@pytest.mark.parametrize("name", [*SIMULATED, REAL])
def test_a_notebook_is_kept_with_small_outputs_of_all_its_cells_and_no_error(name):
    path = NOTEBOOKS / f"{name}.ipynb"
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]

    assert path.stat().st_size < LARGEST
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"execute_result", "display_data", "stream"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert tempfile.gettempdir() not in path.read_text()
    assert str(ROOT) not in path.read_text()


@pytest.mark.parametrize("name", [*SIMULATED, REAL])
def test_a_notebook_imports_run_in_its_first_cell_of_code_alone(name):
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())["cells"]
    first, *rest = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]

    assert first in IMPORT
    assert not any(
        line.startswith(("from sim", "import sim", "from fedsmall")) for cell in rest for line in cell.split("\n")
    )


def test_these_are_all_the_notebooks():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {*SIMULATED, REAL}


def test_a_kept_output_that_lies_is_seen(keeper):
    import nbformat

    def cell(html):
        output = nbformat.v4.new_output("execute_result", {"text/html": html})
        return nbformat.v4.new_code_cell("x", outputs=[output])

    assert_kept(keeper, [cell("<b>accuracy 0.912</b><svg>1</svg>")], [cell("<b>accuracy 0.915</b><svg>2</svg>")])
    for other in ("<b>accuracy 0.95</b>", "<b>auc 0.912</b>", ""):
        with pytest.raises(AssertionError):
            assert_kept(keeper, [cell("<b>accuracy 0.912</b>")], [cell(other)])
