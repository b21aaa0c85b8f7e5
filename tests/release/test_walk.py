"""A stranger's walk: an empty folder, the wheel, and what README and the first tutorial say, typed as it stands.

The app of one's own is typed by tests/examples/test_from_an_empty_folder.py, from the same kind of folder.
"""

import re

import pytest
from sklearn.datasets import load_breast_cancer

from tests import ROOT
from tests.release import check
from tests.release.check import Stranger, build, only

README = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Your own CSV in three commands")[2]
TUTORIAL = (ROOT / "docs" / "tutorials" / "own-table.md").read_text(encoding="utf-8")
TWO_SITES = (
    "from sklearn.datasets import load_breast_cancer\n"
    "x, y = load_breast_cancer(return_X_y=True)\n"
    "(x1, y1), (x2, y2) = (x[:80], y[:80]), (x[80:160], y[80:160])\n"
)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    """Somebody with the wheel and two tables."""
    folder = tmp_path_factory.mktemp("walk")
    build(ROOT, folder, "wheel")
    stranger = check.stranger_with(only(folder, "fedsmall-*.whl"), folder)
    table = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 4, 7, 30]].sample(frac=1, random_state=0)
    table["outcome"] = table.pop("target").map({0: "malignant", 1: "benign"})
    table[:300].to_csv(stranger.folder / "patients.csv", index=False)
    table[300:].drop(columns="outcome").to_csv(stranger.folder / "new-patients.csv", index=False)
    return stranger


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_readme_s_three_commands_and_its_python_end_in_a_report_and_predictions(stranger: Stranger) -> None:
    said = stranger.shell(blocks(README, "bash")[0])
    python = stranger.python(TWO_SITES + blocks(README, "python")[0])

    assert (stranger.folder / "mine.toml").exists()
    assert (stranger.folder / "runs" / "mine" / "report.html").stat().st_size > 50_000
    assert "malignant" in said
    assert "FedDC" in python


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_tutorial_ends_in_two_runs_side_by_side(stranger: Stranger) -> None:
    (stranger.folder / "handful.toml").write_text(blocks(TUTORIAL, "toml")[0])

    said = stranger.shell(blocks(TUTORIAL, "bash")[1])

    assert (stranger.folder / "runs" / "handful-2" / "report.html").exists()
    assert "FedAvg, same period" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_package_of_one_s_own_is_installed_and_known_by_its_names(stranger: Stranger) -> None:
    stranger.install(ROOT / "examples" / "own_package")

    assert "FedWinsor" in stranger.fedsmall("list", "methods")
    assert "along a hypercube" in stranger.fedsmall("run", str(ROOT / "examples" / "own_package" / "moons.toml"))
