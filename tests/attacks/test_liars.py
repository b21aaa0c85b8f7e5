"""Orders and answers that a server or a site makes up, 350 and 300: each is refused in one line, or harmless."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fedsmall.audit_log import verify
from fedsmall.clients import relay
from fedsmall.clients.data_process import DataProcess
from fedsmall.frames import FrameError, from_frame, to_frame
from fedsmall.sim.consortium import runs, sample_data
from fedsmall.wire import PLAN, ROUND, ROUNDS, Arrays
from tests.attacks.test_mutations import mutated
from tests.clients.test_data_process import AS_IT_IS, NAMES, order, scaled
from tests.sim.consortium.desk import Desk, plan_of

ORDERS, ANSWERS, ROUNDS_OF_LIES = 350, 300, 210
KINDS = ("roll", "scaling", "train", "evaluate", "validate", "balance", "nothing", "../roll", "")
JUNK: tuple[Any, ...] = (
    *(None, "", 0, -1, 10**30, 1.5, float("nan"), float("inf"), True, b"\x80\x04K\x01.", [], ["a", 1], {}),
    *({"a": {"b": []}}, "../../../etc/passwd", "/tmp/x", "a" * 100_000, "\u202ereversed\x00\x1b[31m", "{" * 20_000),
)
NUMBERS = (np.nan, np.inf, -np.inf, 3.4e38, -1e30, 1e5)
PYTHON = ("Error(", "Traceback", "AttributeError", "TypeError", "KeyError", "ValueError", "object has no attribute")


def spoiled_arrays(arrays: Arrays, rng: random.Random) -> Arrays:
    """Arrays that are not what was asked for, in one of a dozen ways."""
    made = {name: np.array(array) for name, array in arrays.items()}
    name = rng.choice([*made, "none"])
    array = made.get(name, np.zeros((2, 2), np.float32))
    ways = {
        "gone": lambda: made.pop(name, None),
        "none at all": made.clear,
        "renamed": lambda: made.update({f"../{name}": made.pop(name, array)}),
        "one more": lambda: made.update({"more": np.ones(3)}),
        "thousands more": lambda: made.update({f"n{k}": np.ones(1, np.float32) for k in range(3000)}),
        "another shape": lambda: made.update({name: array.ravel()[:1]}),
        "no numbers": lambda: made.update({name: np.zeros((0, 7), array.dtype)}),
        "no dimension": lambda: made.update({name: np.asarray(7.0)}),
        "whole numbers": lambda: made.update({name: np.ones(array.shape, np.int64)}),
        "double": lambda: made.update({name: array.astype(np.float64)}),
        "booleans": lambda: made.update({name: array > 0}),
        "a number that is none": lambda: array.reshape(-1)[:1].fill(rng.choice(NUMBERS)) if array.size else None,
        "far away": lambda: made.update({name: array + np.asarray(rng.choice(NUMBERS), array.dtype)}),
    }
    with np.errstate(all="ignore"):
        ways[rng.choice(list(ways))]()
    return made


def spoiled_words(words: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Words of which some are others, gone, or more."""
    made = dict(words)
    for _ in range(rng.choice((1, 1, 2, 5))):
        key = rng.choice([*made, "new"])
        if rng.random() < 0.2:
            made.pop(key, None)
        elif key == PLAN and rng.random() < 0.6:
            made[key] = mutated(str(words[PLAN]).encode(), rng).decode("utf-8", "replace")
        else:
            made[key] = rng.choice(JUNK)
    return made


def assert_plain(reason: str, *paths: Any) -> None:
    assert len(reason) < 2_000
    assert reason.splitlines() == [reason]
    assert not [word for word in (*PYTHON, *map(str, paths)) if word in reason], reason


@pytest.mark.thorough
def test_orders_that_a_server_makes_up_are_refused_or_answered_and_the_next_honest_one_has_the_same_bits(tmp_path):
    stations = []
    for folder in ("lied to", "left alone"):
        home = tmp_path / folder
        files = {name: home / f"{name}.csv" for name in NAMES}
        home.mkdir()
        sample_data.write(list(files.values()))
        (home / "policy.toml").write_text(AS_IT_IS)
        stations.append(DataProcess("essen", files["essen"], home / "home", home / "policy.toml"))
    models = [scaled(station) for station in stations]
    rng, said = random.Random(0), Counter()
    before = {path for path in tmp_path.rglob("*") if "home" not in path.parts}

    for _ in range(ORDERS):
        kind, config, arrays = "train", order(1), models[0]
        what = rng.randrange(4)
        kind = rng.choice(KINDS) if what == 0 else kind
        config = spoiled_words(config, rng) if what in (1, 3) else config
        arrays = spoiled_arrays(arrays, rng) if what in (2, 3) else arrays
        if rng.random() < 0.1:
            config = {**config, rng.choice((ROUND, ROUNDS)): rng.choice((0, -3, 5, 2_000, 10**9))}
        words, sent = stations[0].answer(kind, config, arrays)
        said["refused" if "error" in words else "answered"] += 1
        if "error" in words:
            assert not sent
            assert_plain(words["error"], tmp_path)
            assert "its program failed" not in words["error"], (kind, config, {n: a.shape for n, a in arrays.items()})

    assert said["refused"] > ORDERS / 2
    assert {path for path in tmp_path.rglob("*") if "home" not in path.parts} == before
    assert verify(stations[0].home / "log.jsonl").fault is None
    honest = [station.answer("train", order(1), model) for station, model in zip(stations, models, strict=True)]
    assert "error" not in honest[0][0]
    assert all(honest[0][1][name].tobytes() == array.tobytes() for name, array in honest[1][1].items())


@pytest.mark.thorough
def test_answers_that_a_site_makes_up_cost_the_others_nothing(tmp_path, monkeypatch):
    rng, lies = random.Random(1), Counter()
    desk = Desk(tmp_path, monkeypatch)
    earlier: list[bytes] = []

    def ask(path: str, frame: bytes) -> bytes:
        words, arrays = from_frame(frame)
        told, sent = desk.answer(path, words["kind"], words["config"], arrays)
        honest = to_frame(told, sent)
        if path != "ulm" or words["kind"] not in ("train", "evaluate"):
            return honest
        earlier.append(honest)
        way = rng.choice(["bytes", "words", "metrics", "arrays", "arrays", "error", "earlier", "nothing", "text"])
        lies[way] += 1
        if way == "words":
            return to_frame(_writable({**told, "config": spoiled_words(told.get("config", {}), rng)}), sent)
        if way == "metrics":
            metrics = {f"m{k}": rng.choice(NUMBERS) for k in range(rng.choice((1, 5000)))}
            return to_frame({**told, "metrics": metrics}, sent)
        if way == "arrays":
            return to_frame(told, spoiled_arrays(sent, rng))
        others = {
            "bytes": lambda: mutated(honest, rng),
            "error": lambda: to_frame({"error": rng.choice(("", "a" * 1_000_000, "line\nline", "\x1b[31m"))}, {}),
            "earlier": lambda: rng.choice(earlier),
            "nothing": lambda: b"",
            "text": lambda: b"<html>" * 1000,
        }
        return others[way]()

    monkeypatch.setattr(relay.socket_frames, "ask", ask)
    outcome = desk.run("lies", plan_of(ROUNDS_OF_LIES, evaluate_every=2), round_deadline_s=30.0)

    assert sum(lies.values()) >= ANSWERS
    assert len(lies) == 8
    assert outcome.comm_rounds == ROUNDS_OF_LIES
    assert {event["site"] for event in outcome.events if event["kind"] != "refused"} <= {"ulm"}
    for event in outcome.events:
        assert_plain(event["reason"], tmp_path)
    assert all(np.isfinite(array).all() for array in outcome.model.values())
    assert verify(runs.run_home(desk.folder, "lies") / "log.jsonl").fault is None


def _writable(words: dict[str, Any]) -> dict[str, Any]:
    """Words as far as a frame, and a message of Flower's, can hold them, which is what a liar can send."""
    made = {}
    for key, value in words["config"].items():
        try:
            from_frame(to_frame({"config": {key: value}}, {}))
            made |= ConfigRecord({str(key): value})
        except (FrameError, TypeError, ValueError, RecursionError):
            made[str(key)] = "junk"
    return {**words, "config": made}
