"""The coordinator's log, read: bytes each way, seconds of communication rounds, and what a strategy does not see."""

from fedsmall.sim.consortium.runs import run_log


def line(second, event, **fields):
    return {"time": f"2026-01-01T00:00:{second:06.3f}+00:00", "event": event, **fields}


def order(second, site, t, size=100):
    return line(second, "order", kind="train", site=site, t=t, bytes=size)


def answer(second, site, t, size=90):
    return line(second, "answer", kind="train", site=site, t=t, bytes=size)


def test_a_comm_round_lasts_from_its_first_order_to_its_last_answer():
    read = run_log(
        [
            line(0, "launched"),
            order(1, "a", 5),
            order(1.5, "b", 5),
            answer(2, "b", 5),
            answer(4.25, "a", 5),
            order(6, "a", 10),
            answer(7, "a", 10),
        ]
    )

    assert list(read.comm_rounds.values()) == [[5, 3.25, 2], [10, 1.0, 1]]
    assert read.sites["a"] == {"orders": 2, "answers": 2, "refused": 0, "silent": 0, "sent": 200, "came": 180}
    assert (read.started[17:19], read.ended[17:19], read.launches) == ("00", "07", 1)


def test_a_comm_round_that_was_cut_off_counts_as_it_was_begun_anew():
    read = run_log([line(0, "launched"), order(1, "a", 5), line(30, "launched"), order(31, "a", 5), answer(33, "a", 5)])

    assert list(read.comm_rounds.values()) == [[5, 2.0, 1]]
    assert [(e["t"], e["kind"]) for e in read.events] == [(5, "resumed")]


def test_silence_refusal_and_absence_are_counted_or_told():
    read = run_log(
        [
            line(0, "launched"),
            order(1, "a", 5),
            line(2, "lost", kind="train", site="a", t=5, reason="its program went away"),
            order(3, "a", 5),
            line(4, "failed", kind="train", site="a", t=5, reason="no"),
            line(5, "silent", kind="train", site="b", t=5),
            line(5, "log fault", kind="train", site="b", t=5, reason="its log was cut off"),
            line(5, "waits", kind="train", site="b", t=5, reason="b: paused by the hospital"),
            line(6, "away", site="b"),
            line(7, "taken back", t=3),
        ]
    )

    assert (read.sites["a"]["orders"], read.sites["a"]["refused"], read.sites["b"]["silent"]) == (2, 1, 1)
    assert [(e["t"], e["site"], e["kind"]) for e in read.events] == [
        (5, "a", "lost"),
        (5, "b", "waits"),
        (5, "b", "away"),
        (3, "", "taken back"),
    ]
    assert read.sites["b"]["refused"] == 1
    assert read.events[0]["reason"] == "its program went away"


def test_questions_are_no_comm_rounds_but_their_bytes_count():
    read = run_log(
        [line(0, "order", kind="evaluate", site="a", t=5, bytes=7), line(1, "answer", kind="query", site="a", bytes=3)]
    )

    assert read.comm_rounds == {}
    assert (read.sites["a"]["sent"], read.sites["a"]["came"]) == (7, 3)
