"""The notebook runs from its first cell to its last, as a reader would run it from an empty folder."""

import json

import pytest

from tests import ROOT

NOTEBOOK = ROOT / "examples" / "notebooks" / "first_federation.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PYTHONPATH": ROOT, "IPYTHONDIR": folder / "ipython", "MPLBACKEND": ""}.items():
            patch.setenv(name, str(value))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.delenv("MPLBACKEND")
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    assert (folder / "runs" / "mine" / "report.html").exists()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell, kind):
    return [output.data[kind] for output in cell.outputs if kind in output.get("data", {})]


def test_a_result_draws_its_figure_and_its_table(cells):
    _, html = shown(cells[2], "text/html")

    assert "<table>" in html
    assert "<svg role=" in html
    assert "FedDC ended" in html or "FedDC went to its end" in html
    assert len(shown(cells[2], "image/png")) == 1


def test_a_run_shows_one_bar_that_is_gone_at_its_end_and_no_lines(cells):
    streams = [output for output in cells[2].outputs if output.output_type == "stream"]

    assert streams == []
    assert shown(cells[2], "text/html")[0] == ""


def test_tables_figures_and_predictions_are_shown(cells):
    assert "FedDC" in shown(cells[3], "text/html")[0]
    assert len(shown(cells[4], "image/png")[0]) > 5_000
    assert "p_malignant" in shown(cells[5], "text/html")[0]
    assert "truth" in shown(cells[5], "text/html")[0]


def test_it_is_kept_without_outputs_and_is_small():
    notebook = json.loads(NOTEBOOK.read_text())

    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook["cells"])
    assert NOTEBOOK.stat().st_size < 20_000
