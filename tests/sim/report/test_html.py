import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedsmall.methods import method
from fedsmall.parts import EarlyStop
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.report import figures
from fedsmall.sim.report.html import page, write_report
from fedsmall.sim.report.tables import table
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.merge import data_of, merge
from fedsmall.sim.runs.scenario import load, shown_scenario
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Action, schedule_for
from tests.oracles import permutation
from tests.sim.runs.scenarios import SMALL, write

VOID = {"meta", "br", "path", "use", "image", "rect", "line", "circle", "input"}


class Nesting(HTMLParser):
    """Fails where a tag is closed that is not the last one opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass


@pytest.fixture(scope="module")
def html(small_run) -> str:
    return (small_run.folder / "report.html").read_text(encoding="utf-8")


def test_the_report_is_one_well_formed_file_that_fetches_nothing(html):
    parser = Nesting()
    parser.feed(html)

    assert parser.open == []
    assert not re.search(r'(src|href)="(?!#|data:text/csv)', html.replace('xlink:href="#', ""))
    assert "@import" not in html
    assert "<script" not in html


@pytest.mark.thorough
def test_a_report_of_one_seed_is_well_formed_too(small_run):
    run = read(small_run.folder)
    run.done = [one for one in run.done if one.plan.seed == 0]
    parser = Nesting()

    parser.feed(page([run], "one seed"))

    assert parser.open == []


def test_figures_take_the_ink_of_the_page(html):
    assert "currentColor" in html
    assert "var(--rule)" in html
    assert figures.INK not in re.sub(r"<style>.*?</style>", "", html, count=1, flags=re.DOTALL)
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


@pytest.mark.thorough
def test_the_report_is_made_again_from_the_folder_alone(small_run, html):
    again = page([read(small_run.folder)], "small")

    assert again == html


@pytest.mark.thorough
def test_words_of_a_scenario_cannot_break_the_page(small_run):
    scenario = small_run.scenario.model_copy(update={"name": "<script>", "about": "a & b < c"})

    html = page([read(small_run.folder).__class__(**{**vars(small_run), "scenario": scenario})], "<b>")

    assert "<script>" not in html
    assert "a &amp; b &lt; c" in html


@pytest.mark.thorough
def test_words_of_a_reply_cannot_break_the_page(small_run):
    run = read(small_run.folder)
    run.done[3].events.append({"t": 2, "site": "<img src=x>", "reason": "</td><script>"})
    method = run.done[0].plan.method.model_copy(update={"label": "<b>alone</b>"})
    run.done[0] = replace(run.done[0], plan=run.done[0].plan.model_copy(update={"method": method}))

    html = page([run], "events")

    assert not re.search(r"<script|<img|<b>alone", html)
    assert "&lt;b&gt;alone&lt;/b&gt;" in html


def test_the_templates_go_into_the_wheel_with_the_package():
    from importlib.resources import files

    config = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())

    assert "sim" in config["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert any(each.startswith("jinja2") for each in config["project"]["dependencies"])
    assert {"page.html", "run.html", "sections.html"} <= {
        f.name for f in (files("fedsmall.sim.report") / "templates").iterdir()
    }


@pytest.mark.thorough
def test_a_partial_run_says_what_was_not_run(small_run):
    run = read(small_run.folder)
    run.done = run.done[:7]

    html = page([run], "partial")

    assert "This run is partial" in html
    assert "7 of 10 plans were run" in html
    assert "FedAvg, b = 1 (seed 1), FedDC (seed 1), Central (seed 1)" in html


def test_a_run_without_a_finished_plan_still_has_a_report(small_run):
    run = read(small_run.folder)
    run.done = []

    assert "0 of 10 plans were run" in page([run], "nothing")


def test_the_commonest_class_is_kept_in_the_folder_and_shown_by_report_and_compare(small_run, html):
    kept = read(small_run.folder)
    federation = build_federation(kept.plans[0])
    commonest = np.bincount(np.concatenate([site.y for site in federation.train])).argmax()

    assert kept.done[0].row["trivial"]["common"]["accuracy"] == np.mean(federation.test.y == commonest)
    assert "<td>the majority class</td>" in html
    assert table(merge([kept])[0]).trivial == table(kept).trivial is not None


@pytest.mark.thorough
def test_a_folder_of_an_older_version_still_has_a_report(small_run):
    run = read(small_run.folder)
    for one in run.done:
        del one.row["trivial"]

    html = page([run], "old")

    assert "<td>the majority class</td>" not in html
    assert "FedAvg, b = 1" in html


@pytest.mark.thorough
def test_names_of_files_are_not_in_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients-of-ward-7.csv").write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    text = SMALL.replace('"breast_cancer"', '{csv = "patients-of-ward-7.csv", label = "y"}').replace("[0, 1]", "[0]")
    run = execute(load(write(tmp_path, text)), Path("run"), engine="inprocess")

    html = write_report(Path("run"), [run], "own").read_text()

    assert "ward-7" not in html
    assert str(tmp_path) not in html
    assert shown_scenario(run.scenario)["task"] == {"csv": "(your files)", "label": "y"}


def test_a_journey_replays_the_permutations_of_the_run(small_run):
    plan = next(plan for plan in small_run.plans if plan.method.permute_every)

    comm_rounds, places = zip(*journey(plan, 5), strict=True)

    assert [comm_round.t for comm_round in comm_rounds] == [1, 2, 3, 4, 5, 6]
    assert [comm_round.t for comm_round in comm_rounds if comm_round.action is Action.AGGREGATE] == [3, 6]
    assert all(sorted(at.tolist()) == [0, 1, 2, 3, 4] for at in places)
    assert places[3].tolist() == places[2].tolist()
    assert places[1].tolist() != places[0].tolist() or places[2].tolist() != places[1].tolist()


def test_a_journey_is_the_route_that_the_named_permutations_make(small_run):
    plan = next(plan for plan in small_run.plans if plan.method.permute_every)
    names = [f"site-{number}" for number in range(5)]

    _, places = zip(*journey(plan, 5), strict=True)

    for t in (1, 2, 4, 5):  # the others average
        route = permutation(plan.seed, t, names)
        assert [names[at] for at in places[t]] == [route[names[at]] for at in places[t - 1]]


@pytest.mark.parametrize("random_schedule", [False, True])
def test_traffic_is_counted_by_the_comm_rounds_that_the_run_had(random_schedule):
    settings = {"permute_every": 2, "aggregate_every": 6, "random_schedule": random_schedule}
    plan = Plan(name="p", task="digits", rounds=24, seed=3, method=method("FedDC", **settings))
    due = [t for t in range(1, 24) if schedule_for(plan).action(t) is not Action.TRAIN] + [24]
    one = SimpleNamespace(plan=plan, row={"bytes_sent": 1000})

    for t in range(1, 25):
        assert figures._bytes(one, t) == pytest.approx(1000 * len([when for when in due if when <= t]) / len(due))


@pytest.mark.thorough
def test_runs_of_one_name_on_other_data_have_names_and_places_of_their_own(small_run):
    other = replace(small_run, plans=[plan.model_copy(update={"samples_per_site": 3}) for plan in small_run.plans])

    html = page(merge([small_run, other]), "Runs compared")

    names = re.findall(r'<section id="([^"]+)"', html)
    assert len(set(names)) == 2
    assert re.findall(r'<nav><a href="#([^"]+)">[^<]+</a><a href="#([^"]+)">', html)[0] == tuple(names)
    ids = re.findall(r' id="([^"]+)"', re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL))
    assert len(set(ids)) == len(ids)


def test_what_sites_keep_back_is_the_methods_way_with_the_same_data():
    plan = Plan(name="s", task="breast_cancer", sites=4, method=method("FedAvg"))
    patient = plan.model_copy(update={"stop": EarlyStop(patience=2, hold_out=0.25)})

    assert patient.data_key != plan.data_key
    assert data_of(patient) == data_of(plan)


def test_the_captions_of_wide_tables_may_break(small_run):
    templates = (Path(figures.__file__).parent / "templates").glob("*.html")

    bare = [line for path in templates for line in path.read_text().splitlines() if "<caption>" in line]

    assert bare
    assert all("<caption><div>" in line for line in bare)


def test_runs_on_the_same_data_are_merged_and_keep_their_names(small_run, tmp_path):
    path = write(tmp_path, SMALL.replace("lr = 0.05", "lr = 0.2").replace("seeds = [0, 1]", "seeds = [1]"))
    other = execute(load(path), tmp_path / "other", engine="inprocess")

    (merged,) = merge([small_run, other])

    labels = {one.label for one in merged.done}
    assert {"FedDC (run)", "FedDC (other)"} <= labels
    assert len(merged.done) == 15
    assert merged.not_run == []


def test_runs_on_other_data_stay_apart(small_run, tmp_path):
    path = write(tmp_path, SMALL.replace("sites = 5", "sites = 4").replace("seeds = [0, 1]", "seeds = [1]"))
    other = execute(load(path), tmp_path / "other", engine="inprocess")

    assert len(merge([small_run, other])) == 2
