"""One page of each kind of report, and what the terminal says, as text: whoever changes words reads the difference.

``GOLDEN=write pytest tests/sim/report/test_golden.py`` writes them anew.
"""

import io
import os
import re
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from fedsmall.clients.policy import Policy
from fedsmall.sim.report.hospital import own_run
from fedsmall.sim.report.hospital import page as own_page
from fedsmall.sim.report.html import page
from fedsmall.sim.report.terminal import print_run
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import Run, read
from fedsmall.sim.runs.scenario import Scenario
from tests.sim.consortium.real_run import plan_of, real_run
from tests.sim.engines import test_outcomes as sources

FOLDER = Path(__file__).parent / "golden"
OF_THE_MACHINE = (  # what differs from one machine, day or version to the next
    (r"\d+ cores, [^,;\n]+, \d{4}-\d\d-\d\d", "CORES, MACHINE, DAY"),
    (r"(?m)^(fedsmall|numpy|torch|flwr|python|[\w-]+) [\d.]+\S*(, [\w-]+ [\w.+]+)+$", "VERSIONS"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?", "TIME"),
    (r"\d+ communication rounds, .* UTC; .*", "BEGUN AND ENDED"),
    (r"\b[0-9a-f]{16,64}\b", "DIGEST"),
    (r"/\S*/pytest-\d+/(popen-gw\d+/)?\w+", "FOLDER"),
    (r"(?s)The model card .*?\n(?=Events)", ""),  # whose words are fedsmall.package's
)
KINDS = {
    "numbers": (sources.numbers, "linear"),
    "times": (sources.times, "proportional"),
    "grades": (sources.grades, "proportional"),
    "labels": (sources.labels, "linear"),
}
SMALL = {"sites": 4, "samples_per_site": 8, "rounds": 4, "seeds": [0, 1], "recipe": {"lr": 0.1}}
FEDDC = {"name": "FedDC", "permute_every": 1, "aggregate_every": 2}
TABLES = {
    "classes": {
        "task": {"name": "breast_cancer", "subgroups": ["mean radius>=15"]},
        "seeds": [0, 1, 2, 3, 4],
        "threshold": "youden",
        "method": [{"name": "Standalone"}, {"name": "FedAvg"}, FEDDC, {"name": "Central"}],
    },
    "facts": {  # what is said beside a table
        "task": "breast_cancer",
        "metric": "accuracy",
        "method": [
            {"name": "FedAvg"},
            {"name": "FedAvg", "label": "routes", "validate": {"routes": 2}},
            {"name": "FedAvg", "label": "dynamic", "divergence": 0.02},
            {"name": "FedAvg", "label": "site", "aggregate_every": 2, "privacy": {"clip": 1.0, "noise": 9.0}},
            FEDDC,
            FEDDC | {"label": "noisy", "privacy": {"level": "patient", "clip": 1.0, "noise": 3.0, "lot": 4}},
            FEDDC | {"label": "hidden", "privacy": {"sealed": True, "secure": True, "blur": 1}},
            FEDDC | {"label": "rounded", "wire": "int8"},
            {"name": "TravellingGroups", "groups": 2},
            {"name": "SCAFFOLD"},
        ],
    },
    "folds": {"task": "breast_cancer", "samples_per_site": None, "folds": 3, "seeds": [0], "method": [FEDDC]},
    "stops": {
        "task": "breast_cancer",
        "rounds": 40,
        "recipe": {"lr": 2.0},
        "evaluate_every": 2,
        "stop": {"patience": 2, "hold_out": 0.25},
        "method": [{"name": "FedAvg"}, {"name": "Standalone"}],
    },
}


def text_of(html: str) -> str:
    """The words of a page, a line for each paragraph, row or caption."""
    html = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", html, flags=re.DOTALL)
    html = re.sub(r"</?t[dh][^>]*>", " | ", html.replace("<br>", " "))
    html = re.sub(r"<(?:/?(?:p|li|tr|h\d|caption|div|figcaption|summary|pre|table|nav)\b)[^>]*>", "\n", html)
    lines = (
        re.sub(r"(\| )+\|", "|", " ".join(line.split())) for line in unescape(re.sub(r"<[^>]+>", "", html)).split("\n")
    )
    return "\n".join(line for line in lines if line.strip(" |"))


def check(name: str, text: str) -> None:
    """Hold a text to the one that is kept; the list of TRIPOD+AI and how to read a page are in one of them alone."""
    text = text if name == "classes" else text.partition("\nAppendix: TRIPOD+AI")[0]
    for pattern, word in OF_THE_MACHINE:
        text = re.sub(pattern, word, text)
    path = FOLDER / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8")


def said(run: Run) -> str:
    shown = io.StringIO()
    print_run(Console(file=shown, width=160, soft_wrap=True), run)
    return shown.getvalue()


@pytest.mark.thorough
@pytest.mark.parametrize("name", TABLES)
def test_the_page_and_the_terminal_say_what_they_said(name, tmp_path):
    asked = {key: value for key, value in (SMALL | TABLES[name]).items() if value is not None}
    run = execute(Scenario(name=name, about=f"Of {name}.", **asked), tmp_path / "run")

    check(name, said(run) + text_of(page([read(run.folder)], name)))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_of_another_outcome_says_what_it_said(kind):
    source, model = KINDS[kind]
    methods = [{"name": "FedAvg"}, FEDDC]
    task = {"source": f"{sources.__name__}:{source.__name__}"}
    run = execute(Scenario(name=kind, task=task, model=model, **(SMALL | {"method": methods})))

    check(kind, text_of(page([run], kind)))


@pytest.mark.thorough
def test_the_pages_of_a_run_over_real_sites_say_what_they_said(tmp_path, monkeypatch):
    home = real_run(tmp_path, plan_of(), monkeypatch)

    check("real", text_of(page([read(home)], "real")))
    check("hospital", text_of(own_page(own_run(tmp_path / "essen", Policy(), "essen", "trial"))))
