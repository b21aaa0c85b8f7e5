"""What README and the tutorials show works as it stands there."""

import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fedsmall.audit_log import AuditLog
from fedsmall.sim import run
from fedsmall.sim.consortium import server
from fedsmall.sim.consortium import site as sites
from fedsmall.sim.consortium.flower_cli import port_is_free
from fedsmall.sim.runs.scenario import build
from fedsmall.strategies import DaisyChain
from tests import ROOT
from tests.sim.cli.lines import assert_known
from tests.strategies.toy import toy_grid

TUTORIALS = ROOT / "docs" / "tutorials"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {"README": README, **{path.stem: path.read_text(encoding="utf-8") for path in sorted(TUTORIALS.glob("*.md"))}}


def blocks(language: str, page: str = "README") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_the_two_commands_at_the_top_are_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    first = blocks("bash")[0]

    asked = re.findall(r"^make (\S+)", first, re.MULTILINE)

    assert asked == ["demo", "test"]
    for target in asked:
        assert re.search(rf"^{target}: \$\(READY\)", makefile, re.MULTILINE)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("scenario", "page", "title", "count"),
    [
        ("demo_digits", "README", "## What the demo shows", 6),
        ("demo_breast_cancer", "install", "## What the demo prints first", 7),
    ],
)
def test_the_demo_shows_what_the_pages_say(fedsmall, scenario, page, title, count):
    shown = PAGES[page].split(title)[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|:]+).*? \|(.*)\|$", shown, re.MULTILINE)[1:]

    code, said, _ = fedsmall("run", scenario)

    assert (code, len(rows)) == (0, count)
    for label, cells in rows:
        line = next(line for line in said.splitlines() if line.startswith(label.strip()))
        for cell in filter(None, map(str.strip, cells.split("|"))):
            assert cell in line, line


@pytest.mark.thorough
def test_the_scenario_for_ones_own_table_runs(fedsmall, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a:.2f},{b:.2f},{'ill' if a + b > 0 else 'well'}" for a, b in rng.normal(size=(160, 2))]
    (tmp_path / "patients.csv").write_text("\n".join(["age,marker,outcome", *rows]))
    (tmp_path / "handful.toml").write_text(blocks("toml", "own-table")[0])
    short = ["--set", "rounds=20", "--set", "seeds=[0]"]

    ended = [fedsmall("new", "patients.csv", "--label", "outcome", "--out", "mine.toml")]
    ended += [fedsmall("run", "mine.toml", *short), fedsmall("predict", "runs/mine", "patients.csv")]
    ended += [
        fedsmall("run", "handful.toml", *short),
        fedsmall("run", "handful.toml", *short, "--set", "recipe.lr=0.1"),
    ]
    ended += [fedsmall("compare", "runs/handful", "runs/handful-2")]

    assert [code for code, _, _ in ended] == [0] * 6
    assert [complained for _, _, complained in ended if "No medical device" not in complained] == [""] * 5
    assert "FedAvg, same traffic" in ended[3][1]
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    assert (tmp_path / "runs" / "handful-2" / "report.html").is_file()


def test_the_scenario_says_what_its_comments_say():
    scenario = build(tomllib.loads(blocks("toml", "own-table")[0]))
    methods = [plan.method for plan in scenario.plans()[:5]]

    assert len(scenario.seeds) >= 5
    assert [method.name for method in methods] == ["Standalone", "FedAvg", "FedAvg", "FedDC", "Central"]
    assert methods[2].aggregate_every == methods[3].aggregate_every == 20


@pytest.mark.parametrize("page", ["README", "python"])
def test_the_lines_for_python_run(page):
    rng = np.random.default_rng(0)
    given = {f"x{k}": rng.normal(size=(12, 3)) for k in (1, 2)} | {f"y{k}": np.arange(12) % 2 for k in (1, 2)}
    code = blocks("python", page)[0].replace("seeds=[0, 1, 2]", "seeds=[0], rounds=4, progress=False")

    exec(code, scope := {**given})

    assert list(scope["result"].table().index) == [
        "the majority class",
        "logistic regression, pooled (scikit-learn)",
        "Standalone",
        "FedAvg",
        "FedDC",
    ]
    assert scope["run"] is run


def test_a_daisy_chain_around_fedadam_runs_under_flowers_own_start(monkeypatch):
    ended = []
    real = DaisyChain.start
    monkeypatch.setattr(DaisyChain, "start", lambda self, *given, **named: ended.append(real(self, *given, **named)))
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    exec(blocks("python", "flower-app")[0], scope := {"__name__": "server_app"})

    torch.manual_seed(0)
    before = torch.nn.Linear(30, 2).state_dict()
    torch.manual_seed(0)
    scope["app"](toy_grid(4), context)

    after = {name: array.numpy() for name, array in ended[0].arrays.items()}
    assert list(after) == ["weight", "bias"]
    # the sites pull every number towards 1, 2, 3 or 4, and FedAdam has taken four steps of about 0.03 that way
    assert all(np.all(after[name] > before[name].numpy() + 0.05) for name in after)


PORTS = (8443, 18443)


def took_part(here, run):
    """The sites that trained in a run of the consortium in a folder."""
    entries = AuditLog(here / "consortium/runs" / run / "log.jsonl").entries()
    return sorted({entry["site"] for entry in entries if entry["event"] == "answer" and entry["kind"] == "train"})


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.needs("nginx")
def test_three_hospitals_on_one_machine_come_to_a_first_comm_round_in_five_minutes_and_a_fourth_joins(
    tmp_path_factory,
):
    if not all(port_is_free("127.0.0.1", port) for port in PORTS):
        pytest.skip("a port that the tutorial names is taken on this machine")
    here = tmp_path_factory.mktemp("r")
    lines, later = blocks("bash", "three-hospitals")
    variables = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    begun = datetime.now(UTC)

    try:
        done = subprocess.run(
            ["bash", "-ec", lines + later], cwd=here, env=variables, capture_output=True, text=True, check=False
        )
    finally:
        for site in ("bonn", "essen", "graz", "ulm"):
            sites.down(sites.Site(here / "consortium/kits" / site, here / "consortium/kits" / site / "state"))
        server.down(here / "consortium")

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("finished after 8 communication rounds") == 2
    assert done.stdout.count("lines hold") == 3  # essen's own log, and the coordinator's of both runs
    assert took_part(here, "consortium-demo") == ["bonn", "essen", "ulm"]
    assert took_part(here, "with-graz") == ["bonn", "essen", "graz", "ulm"]
    entries = AuditLog(here / "consortium/runs/consortium-demo/log.jsonl").entries()
    first = next(entry for entry in entries if entry["event"] == "answer" and entry["kind"] == "train")
    assert (datetime.fromisoformat(first["time"]) - begun).total_seconds() < 300


@pytest.mark.parametrize(
    "line",
    re.findall(
        r"^(?: *|\.venv/bin/)fedsmall ([^#\n]+)",
        "\n".join("".join(blocks("bash", page)) for page in PAGES),
        re.MULTILINE,
    ),
)
def test_every_line_for_the_terminal_has_words_and_options_that_exist(line):
    assert_known(line)


def test_no_line_shows_where_it_was_made():
    assert [page for page, text in PAGES.items() if re.search(r"/(work|root|home|tmp)/", text)] == []
