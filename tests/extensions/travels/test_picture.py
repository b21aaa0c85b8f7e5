"""The picture is read back: what it draws is the run's own way, by itself, and the same letters every time."""

import re
from itertools import groupby
from xml.etree import ElementTree

import pytest

from examples.daisy_chain_picture import picture
from fedsmall.extensions.travels import picture as drawing
from fedsmall.extensions.travels.picture import travel_file, travel_picture, travels, travels_of
from fedsmall.sim.report.html import page
from fedsmall.sim.report.style import short_name
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import PlanRun, read
from fedsmall.sim.runs.scenario import build
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Action
from tests import ROOT
from tests.sim.consortium.real_run import plan_of as real_plan
from tests.sim.consortium.real_run import real_run
from tests.sim.engines.harness import plan_of

CHAIN = {"permute_every": 1, "aggregate_every": 4}
MIDDLE = "middle"


def way(plan, sites, samples=(), names=None):
    names = names or tuple(f"h{number}" for number in range(sites))
    return travels_of(PlanRun(0, plan, {"rounds": plan.rounds}, [], []), names, samples or (2,) * sites)


def chain(sites, rounds=6, **settings):
    return way(plan_of("FedDC", CHAIN | settings, rounds=rounds), sites)


def rules(svg, name):
    """The keyframes of that name: (percent, value), in order."""
    body = re.search(rf"@keyframes {name}\{{((?:[^{{}}]+\{{[^{{}}]*\}})+)\}}", svg)[1]
    parts = re.findall(r"([^{}]+)\{([^{}]*)\}", body)
    found = [(float(at.rstrip("%")), value) for ats, value in parts for at in ats.split(",")]
    assert found == sorted(found, key=lambda key: key[0])
    return found


def drawn(svg, models):
    """Where each model stands, one place after the other: the number of a site, or the middle."""
    site_points = re.findall(r'class="site" cx="([\d.]+)" cy="([\d.]+)"', svg)
    numbers = {(float(x), float(y)): number for number, (x, y) in enumerate(site_points)}
    found = []
    for model in range(models):
        points = (re.search(r"translate\(([\d.]+)px,([\d.]+)px\)", value) for _, value in rules(svg, f"vm{model}"))
        places = [numbers.get((float(p[1]), float(p[2])), MIDDLE) for p in points]
        found.append([place for place, _ in groupby(places)])
    return found


def walked(told):
    """The same from the plan alone."""
    shown = {stop.t for stop in told.stops}
    steps = [(c, at) for c, at in journey(told.plan, len(told.names), told.samples) if c.t in shown]
    found = []
    for model in told.followed:
        places: list = []
        for comm_round, at in steps:
            places += [int(at[model])] + [MIDDLE] * (comm_round.action is Action.AGGREGATE)
        places += [int(steps[-1][1][model])]  # after an average at the very end a model is seen to come back
        found.append([place for place, _ in groupby(places)])
    return found


@pytest.mark.parametrize(
    "told",
    [
        chain(2),
        chain(3),
        chain(10, rounds=20),
        chain(12, groups=3),
        chain(40, rounds=60, aggregate_every=50),
        chain(10, fraction=0.5),
        way(plan_of("TravellingModel", rounds=9), 6),
        way(plan_of("TravellingGroups", {"groups": 2}, rounds=6), 6),
    ],
    ids=["two", "three", "ten", "groups", "a late average", "half of them", "one model", "groups that only average"],
)
def test_the_moves_that_are_drawn_are_those_of_the_run(told):
    svg = travel_file(told)

    assert drawn(svg, len(told.followed)) == walked(told)


def test_rings_close_as_the_models_learn():
    told = chain(5, rounds=8)

    svg = travel_file(told)

    for model in range(5):
        offsets = [int(value.removeprefix("stroke-dashoffset:")) for _, value in rules(svg, f"vr{model}")]
        shares = [share for stop in told.stops for share in (stop.trained[model], stop.averaged[model])]
        closed = [100 - round(100 * share) for share in shares]
        assert [n for n, _ in groupby(offsets)] == [n for n, _ in groupby([100, *closed])]
        assert offsets[-1] == 0


def test_words_follow_the_comm_rounds():
    told = chain(40, rounds=60, aggregate_every=50)

    svg = travel_file(told)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)

    assert [t for t in texts if t.startswith("round ")] == [
        f"round {stop.t}: all train, then {'become one' if stop.action is Action.AGGREGATE else 'go on'}"
        for stop in told.stops
    ]
    assert "after round 7, and before round 48:" in texts
    assert "a model has learnt from 1.0 of 40 sites, 2 of 80 samples" in texts
    assert len({value for _, value in rules(svg, "vw")}) == len(told.stops) + 1


def test_a_file_is_well_formed_and_fetches_nothing_and_runs_nothing():
    svg = travel_file(way(plan_of("FedDC", CHAIN, rounds=6), 3, names=("<b>a&b", '"q"', "'")))

    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    rest = svg.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|href|url\(|@import|<script|<image|<foreignObject|\son\w+=", rest)
    assert "<b>" not in svg


def test_it_rests_for_those_who_ask_for_it_and_on_paper_and_has_ink_for_the_dark():
    svg = travel_file(chain(3))

    assert re.search(r"@media \(prefers-reduced-motion:reduce\),print\{#v \*\{animation:none!important\}", svg)
    assert "@media (prefers-color-scheme:dark)" in svg


def test_two_pictures_on_a_page_do_not_move_each_other():
    one, other = (str(travel_picture(chain(3), name)) for name in ("run-a", "run-b"))

    named = [set(re.findall(r"@keyframes (\w+)|#(\w+) ", svg)) for svg in (one, other)]
    assert not named[0] & named[1]
    assert one == str(travel_picture(chain(3), "run-a"))


def test_a_picture_is_small():
    assert len(travel_file(chain(12, rounds=40, aggregate_every=30))) < 40_000
    assert len(travel_file(chain(1000, rounds=40, aggregate_every=30))) < 60_000


def test_long_names_are_cut():
    assert short_name("a" * 15) == "a" * 13 + "…"
    assert "Klinikum am…</text>" in travel_file(way(plan_of("FedDC", CHAIN), 2, names=("Klinikum am See", "b")))


def run_of(*methods, sites=4):
    table = {"name": "trial", "task": "breast_cancer", "model": "linear", "sites": sites, "samples_per_site": 4}
    return execute(build(table | {"rounds": 6, "seeds": [0], "evaluate_every": 6, "method": list(methods)}))


@pytest.mark.thorough
def test_the_report_has_it_where_models_travelled_and_counts_samples():
    run = run_of({"name": "FedAvg"}, {"name": "FedDC", **CHAIN})

    html = page([run], "trial")

    assert str(travel_picture(travels(run), "run-trial")) in html
    assert "16 of 16 samples" in html
    assert "learns from more samples" in html


@pytest.mark.thorough
def test_the_report_has_none_where_nothing_travelled():
    html = page([run_of({"name": "FedAvg"}, {"name": "Standalone"})], "trial")

    assert "@keyframes" not in html
    assert 'class="travels"' not in html


@pytest.mark.thorough
def test_one_site_has_no_picture():
    run = run_of({"name": "FedDC", **CHAIN}, sites=1)

    assert travels(run) is None
    assert "@keyframes" not in page([run], "trial")


@pytest.mark.thorough
def test_the_same_run_gives_the_same_letters_from_its_folder_and_over_real_sites(tmp_path, monkeypatch):
    home = real_run(tmp_path, real_plan("method.0.aggregate_every=4"), monkeypatch)

    first, again = (travel_file(travels(read(home))) for _ in range(2))

    assert first == again
    assert "bonn</text>" in first
    assert str(travel_picture(travels(read(home)), "run-consortium-demo")) in page([read(home)], "t")


def test_the_file_in_the_documentation_is_made_by_the_example():
    assert (ROOT / "docs" / "daisy-chain.svg").read_text(encoding="utf-8") == picture()


def test_what_is_not_shown_is_jumped_over_while_nobody_sees_the_models():
    told = chain(40, rounds=60, aggregate_every=50)
    times, site_points = drawing.beats(told.stops), [(float(number), 0.0) for number in range(40)]
    index = next(index for index, stop in enumerate(told.stops) if stop.skipped)

    ways = drawing.way_keys(told, site_points, [(0.0, 0.0)] * 12)

    hidden = times[index].gap + drawing.FADE_S
    assert (hidden, "opacity:0") in drawing.shade_keys(told)
    for model, way in zip(told.followed, ways, strict=True):
        before, after = (site_points[told.stops[number].at[model]] for number in (index - 1, index))
        assert (hidden, drawing.moved_to(before)) in way
        assert [value for at, value in way if hidden < at <= times[index].train] == [drawing.moved_to(after)] * 2
