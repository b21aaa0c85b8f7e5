"""Figures for Prometheus: its grammar, sums that agree with the log, and no word of a site but its name."""

import json
import re

import pytest
import yaml

from fedsmall.audit_log import AuditLog
from fedsmall.extensions.dashboard import page
from fedsmall.extensions.dashboard.view import ConsortiumView
from tests import ROOT
from tests.extensions.dashboard.folders import RUN
from tests.sim.consortium.real_run import NAMES

MONITORING = ROOT / "docker" / "monitoring"
STATES = ("prepared", "under way", "stopped", "failed", "finished")
LABEL = r'[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*"'
LINE = re.compile(rf"([a-zA-Z_:][\w:]*)(?:\{{({LABEL}(?:,{LABEL})*)\}})? ([-+.\deE]+|NaN)")


def figures(view):
    """The lines of the text by name and labels; every line must be of Prometheus' grammar."""
    found, typed = {}, set()
    for line in page.metrics_text(view).splitlines():
        if line.startswith("#"):
            typed |= {line.split()[2]} if line.startswith("# TYPE ") else set()
            continue
        name, labels, value = LINE.fullmatch(line).groups()
        assert re.sub(r"_(bucket|sum|count)$", "", name) in typed or name in typed
        assert (name, labels) not in found
        found[name, labels or ""] = float(value)
    return found


def names_in(expression):
    """The figures and the labels that an expression of Prometheus asks for."""
    labels = re.findall(r"(\w+)\s*=~?\s*\"", expression) + re.findall(r"by \(([\w, ]+)\)", expression)
    return set(re.findall(r"fedsmall_\w+", expression)), {word.strip() for some in labels for word in some.split(",")}


def expressions():
    """Every expression of the rules and the board, with the labels that its words use."""
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    for rule in rules:
        yield rule["expr"], set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    for panel in json.loads((MONITORING / "board.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"], set(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))


@pytest.mark.thorough
def test_alerts_and_board_ask_for_figures_and_labels_that_there_are(folder):
    known: dict[str, set[str]] = {}
    for name, labels in figures(ConsortiumView(folder)):
        known.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))

    asked = [(*names_in(expression), words) for expression, words in expressions()]

    assert len(asked) == 15
    for names, labels, words in asked:
        assert names
        assert names <= set(known)
        assert labels | words <= set().union(*(known[name] for name in names))
    of_states = set(re.findall(r'state=~?"([^"]+)"', " ".join(expression for expression, _ in expressions())))
    assert {word for some in of_states for word in some.split("|")} <= set(STATES)


@pytest.mark.thorough
def test_every_line_is_of_the_format_and_a_histogram_adds_up(folder):
    found = figures(ConsortiumView(folder))

    buckets = [v for (name, _), v in found.items() if name == "fedsmall_communication_round_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["fedsmall_communication_round_seconds_count", f'run="{RUN}"'] == 12
    assert found["fedsmall_run_state", f'run="{RUN}",state="finished"'] == 1
    assert sum(v for (name, _), v in found.items() if name == "fedsmall_run_state") == 1


@pytest.mark.thorough
def test_answers_and_refusals_are_those_of_the_log(folder):
    found = figures(ConsortiumView(folder))
    entries = list(AuditLog(folder / "runs" / RUN / "log.jsonl").entries())

    for site in NAMES:
        own = [entry for entry in entries if entry.get("site") == site]
        labels = f'run="{RUN}",site="{site}"'
        assert found["fedsmall_site_answers_total", labels] == sum(e["event"] == "answer" for e in own)
        assert found["fedsmall_site_bytes_total", labels] == sum(e["bytes"] for e in own if e["event"] == "answer")
        assert found["fedsmall_site_refusals_total", labels] == sum(e["event"] == "failed" for e in own)
    assert found["fedsmall_site_refusals_total", f'run="{RUN}",site="ulm"'] == 1


def test_no_reason_is_told_and_names_are_quoted():
    assert page.metrics_line("a", True, site='x"y\\z\n') == 'a{site="x\\"y\\\\z\\n"} 1'
