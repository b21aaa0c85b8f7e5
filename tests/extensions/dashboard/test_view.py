"""What the page says is what the folder says: times from the log, places from the journal, and damage is told."""

import json
import shutil
from datetime import datetime

import pytest

from fedsmall.audit_log import AuditLog
from fedsmall.extensions.dashboard import page
from fedsmall.extensions.dashboard.view import ConsortiumView, FollowedLog, HeldModel, Map, budget_of, state_of
from fedsmall.methods import method
from fedsmall.strategies.server.journal import FileJournal
from tests.extensions.dashboard.folders import PLAN, RUN, consortium
from tests.sim.consortium.real_run import NAMES


@pytest.fixture
def run(folder):
    (only,) = ConsortiumView(folder).runs()
    return only


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.mark.thorough
def test_a_map_is_what_the_journal_holds(folder, run):
    comm_round, _, meta = FileJournal(folder / "runs" / RUN / "journal").latest()

    assert [shown.t for shown in run.maps] == [10, 11, 12]
    assert run.maps[-1].comm_round == comm_round
    assert {held.site: held.model for held in run.maps[-1].held} == {
        site: number for site, (number, _, _) in meta["places"].items()
    }
    assert all(held.is_global for held in run.maps[-1].held)


@pytest.mark.thorough
def test_after_a_hop_every_model_is_somewhere_and_came_from_another_of_the_run(run):
    hop = run.maps[1]

    assert hop.action == "permute"
    assert sorted(held.by for held in hop.held) == list(NAMES)
    assert len({held.model for held in hop.held}) == len(NAMES)
    assert len(page.arrows(hop)) == sum(held.by != held.site for held in hop.held) > 0
    assert not page.arrows(run.maps[0])


def test_the_reader_of_a_log_reads_on_where_it_stopped_and_finds_the_same(copy):
    path = copy / "runs" / RUN / "log.jsonl"
    whole, lines = FollowedLog(path).read(), path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:20])

    log = FollowedLog(path).read()
    assert log.lines == 5  # the half-written line waits
    path.write_bytes(b"".join(lines))
    log = log.read()

    assert vars(log) == vars(whole)


def test_a_log_that_has_become_shorter_is_read_anew(copy):
    path = copy / "runs" / RUN / "log.jsonl"
    log = FollowedLog(path).read()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))

    assert log.read().lines == 4


def test_a_comm_round_that_came_again_after_a_resume_counts_from_its_new_order(tmp_path):
    log = AuditLog(tmp_path / "log.jsonl")
    for _ in range(2):
        log.write("launched", flower=1)
        for t in (1, 2):
            log.write("order", kind="train", site="essen", t=t)
            log.write("answer", kind="train", site="essen", t=t, bytes=10, sha256="x")
    first = next(datetime.fromisoformat(e["time"]).timestamp() for e in log.entries() if e["event"] == "order")

    read = FollowedLog(log.path).read()

    assert [answers for _, _, answers in read.run.comm_rounds.values()] == [1, 1]
    assert read.run.sites["essen"]["answers"] == 4
    assert read.began[1] > first
    assert list(read.between()) == [1]


def test_a_log_that_was_changed_is_told(copy):
    path = copy / "runs" / RUN / "log.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"ulm"', b'"ulx"', 1))

    (run,) = ConsortiumView(copy).runs()

    assert "was changed after it was written" in run.check.fault


def test_a_run_that_cannot_be_read_is_named_and_the_others_are_shown(copy):
    shutil.copytree(copy / "runs" / RUN, copy / "runs" / "later")
    (copy / "runs" / "later" / "sheet.json").write_text('{"of": "a later release"}')
    view = ConsortiumView(copy)

    assert [run.name for run in view.runs()] == [RUN]
    assert view.unread == ["later"]


def test_a_damaged_state_of_the_journal_is_left_out(copy):
    (copy / "runs" / RUN / "journal" / "000012.json").write_bytes(b"half")

    (run,) = ConsortiumView(copy).runs()

    assert [shown.t for shown in run.maps] == [10, 11]


@pytest.mark.parametrize(
    ("events", "files", "state"),
    [
        ((), {}, "prepared"),
        (("launched",), {}, "under way"),
        (("launched", "stopped"), {}, "stopped"),
        (("launched", "stopped", "launched"), {}, "under way"),
        (("launched", "failed"), {"failure.json": {"reason": "too few"}}, "failed"),
        (("launched", "finished"), {"outcome.json": {"comm_rounds": 1}}, "finished"),
    ],
)
def test_a_run_is_in_the_state_that_its_log_and_files_say(tmp_path, events, files, state):
    log = AuditLog(tmp_path / "log.jsonl")
    for event in ("prepared", *events):
        log.write(event)
    for name, told in files.items():
        (tmp_path / name).write_text(json.dumps(told))

    assert state_of(tmp_path, FollowedLog(log.path).read())[0] == state


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        (None, "no privacy: models go as they are"),
        ({"secure": True}, "no noise: models go as they are"),
        ({"blur": 1.0}, "blur 1: hides records, and claims no epsilon"),
        ({"clip": 1.0, "noise": 2.0}, "spent by now: "),
        ({"level": "patient", "clip": 1.0, "epsilon": 3.0, "lot": 4}, "each patient by epsilon 3 at delta 1e-05"),
        ({"level": "patient", "clip": 1.0, "noise": 2.0, "lot": 4}, "each patient by noise 2 at delta 1e-05"),
    ],
)
def test_a_budget_is_said_in_words(privacy, words):
    plan = PLAN.model_copy(update={"method": method("FedAvg", aggregate_every=1, privacy=privacy)})

    assert words in budget_of(plan, 3)


def test_what_was_spent_grows_with_the_comm_rounds():
    plan = PLAN.model_copy(update={"method": method("FedAvg", privacy={"clip": 1.0, "noise": 2.0})})

    assert budget_of(plan, 1) != budget_of(plan, 2)


def test_a_consortium_without_a_run_or_a_site_has_a_page(tmp_path):
    text = page.whole(ConsortiumView(consortium(tmp_path / "c", ())), "n")

    assert "no site yet" in text
    assert "None has been started yet" in text


@pytest.mark.parametrize("count", [1, 2, 60])
def test_a_map_of_any_size_stays_on_its_paper(count):
    names = [f"site-{n:02d}" for n in range(count)]
    shown = Map(
        1, 1, "permute", tuple(HeldModel(n, 0, b, False) for n, b in zip(names, names[1:] + names[:1], strict=True))
    )

    for dot in page.site_dots(shown):
        assert 0 < dot.x < page.WIDE
        assert 0 < dot.y < page.HIGH
    assert len(page.arrows(shown)) == (count if count > 1 else 0)


def test_the_head_that_a_site_signed_last_is_shown(tmp_path):
    log = AuditLog(tmp_path / "log.jsonl")
    for head in ("a" * 64, "b" * 64):
        log.write(
            "answer", kind="train", site="essen", t=1, bytes=1, sha256="x", signed={"site": "essen", "head": head}
        )

    assert FollowedLog(log.path).read().heads == {"essen": "b" * 64}


def test_a_run_is_read_again_only_when_one_of_its_files_has_changed(copy, monkeypatch):
    view = ConsortiumView(copy)
    (first,) = view.runs()
    reads = []
    monkeypatch.setattr(FileJournal, "cards", lambda self, last: reads.append(last) or [])

    assert view.runs() == [first]
    assert not reads
    AuditLog(copy / "runs" / RUN / "log.jsonl").write("away", site="essen")
    (again,) = view.runs()
    assert reads
    assert again.log.happened[-1]["event"] == "away"


def test_an_unchanged_run_of_a_new_desk_is_the_same(copy):
    view = ConsortiumView(copy)
    view.runs()

    assert page.body(view) == page.body(ConsortiumView(copy))
