"""What a real site keeps of its visitors outlives a kill, and is what left it."""

import numpy as np
import pytest

from fedsmall.clients.kept import VISITORS, KeptVisitors, load_kept
from fedsmall.clients.runs import run_folder
from fedsmall.clients.station import Station
from fedsmall.package.predictor import predictor_of
from fedsmall.wire import KEPT, LEAVES, MODEL, split
from tests.clients.test_station import AS_IT_IS, files, order, plan, scaled  # noqa: F401


def model(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(2, value, dtype=np.float32)}


def test_the_last_are_kept_and_a_visit_that_is_asked_for_again_forgets_those_after_it(tmp_path) -> None:
    kept = KeptVisitors(tmp_path, 2)
    for t in (1, 4, 9):
        kept.keep(t, model(t))
    assert kept.rounds() == [4, 9]

    again = KeptVisitors(tmp_path, 2)  # another process
    again.keep(4, model(-4))

    assert again.rounds() == [4]
    assert again.members()["w"].tolist() == [[-4, -4]]


@pytest.fixture
def keeping(tmp_path, files):  # noqa: F811
    (tmp_path / "policy.toml").write_text(AS_IT_IS)

    def begin() -> Station:
        return Station("essen", files["essen"], tmp_path / "home", tmp_path / "policy.toml")

    return begin


def test_a_station_that_is_killed_keeps_its_visitors_and_tells_at_the_end_what_they_are_worth(keeping, tmp_path):
    asked = plan(rounds=3, keep_last=2)
    station = keeping()
    start = scaled(station, asked)
    left = []
    for t in (1, 2, 3):
        _, sent = keeping().answer("train", order(t, the_plan=asked), start)  # a new process each time
        left.append(split(sent, MODEL))
    told, _ = keeping().answer("evaluate", order(3, the_plan=asked), start)
    early, _ = keeping().answer("evaluate", order(2, the_plan=asked), start)

    members = KeptVisitors(run_folder(tmp_path / "home" / "runs", "r") / "visitors", 2).members()
    for name, array in members.items():
        np.testing.assert_array_equal(array, np.stack([model[name] for model in left[1:]]))
    assert 0.5 < told["metrics"][f"{KEPT}accuracy"] <= 1
    assert not any(name.startswith(KEPT) for name in early["metrics"])


def test_a_site_predicts_with_its_visitors_what_it_has_told_of_them(keeping, tmp_path):
    asked = plan(rounds=3, keep_last=2)
    station = keeping()
    start = scaled(station, asked)
    for t in (1, 2, 3):
        station.answer("train", order(t, the_plan=asked), start)
    told, _ = station.answer("evaluate", order(3, the_plan=asked), start)
    raw = station._read_samples(asked)[0]

    stored = load_kept(run_folder(tmp_path / "home" / "runs", "r"), VISITORS)

    said = predictor_of([stored]).answers(raw.held_out.x)
    assert (said.named == raw.held_out.y).mean() == pytest.approx(told["metrics"][f"{KEPT}accuracy"])
    assert stored.package.performance["held out at essen"]["accuracy"] == told["metrics"][f"{KEPT}accuracy"]
    assert said.each.shape[0] == 2
    assert (said.spread > 0).any()


def test_a_piece_of_a_contact_is_no_visit(keeping, tmp_path):
    asked = plan(rounds=3, keep_last=2)
    station = keeping()
    start = scaled(station, asked)

    station.answer("train", order(1, the_plan=asked) | {LEAVES: False}, start)

    assert KeptVisitors(run_folder(tmp_path / "home" / "runs", "r") / "visitors", 2).rounds() == []
