"""The journal gives back the last whole state, bit for bit, whatever a kill or a fault left on the disk."""

import hashlib
import itertools
import json
import multiprocessing
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsmall.errors import PlanError
from fedsmall.strategies.server.journal import FileJournal

DTYPES = st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_])
ARRAYS = st.dictionaries(
    st.text("abc/._0", min_size=1, max_size=8),
    DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))),
    max_size=4,
)
META = st.dictionaries(st.text(max_size=5), st.one_of(st.floats(allow_nan=False), st.integers(), st.text(), st.none()))


def same(one, other):
    return one.keys() == other.keys() and all(
        one[k].dtype == other[k].dtype and one[k].shape == other[k].shape and one[k].tobytes() == other[k].tobytes()
        for k in one
    )


@given(ARRAYS, META)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
def test_a_state_comes_back_to_the_bit(tmp_path, arrays, meta):
    journal = FileJournal(tmp_path / "j")

    journal.save(1, arrays, meta)

    comm_round, back, told = journal.latest()
    assert comm_round == 1
    assert same(arrays, back)
    assert told == meta


def filled(folder, comm_rounds=3):
    journal = FileJournal(folder)
    for comm_round in range(1, comm_rounds + 1):
        journal.save(comm_round, {"w": np.full(4, float(comm_round))}, {"contact": comm_round})
    return journal


def test_an_empty_journal_has_no_state(tmp_path):
    assert FileJournal(tmp_path / "none").latest() is None


def test_only_the_last_states_stay_on_the_disk(tmp_path):
    filled(tmp_path, comm_rounds=20)

    assert len(list(tmp_path.iterdir())) == 2 * 3


@pytest.mark.parametrize("ending", ["json", "safetensors"])
@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "remove"])
def test_a_damaged_state_is_passed_over_and_named(tmp_path, ending, harm):
    journal = filled(tmp_path)
    path = tmp_path / f"000003.{ending}"
    content = bytearray(path.read_bytes())
    match harm:
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "flip":
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        case "empty":
            path.write_bytes(b"")
        case "remove":
            path.unlink()

    comm_round, arrays, _ = journal.latest()

    assert comm_round == 2
    assert arrays["w"].tolist() == [2.0] * 4
    assert bool(journal.faults) == (not (harm == "remove" and ending == "json"))


def test_every_cut_of_every_file_leaves_an_older_state(tmp_path):
    journal = filled(tmp_path)
    for ending in ("json", "safetensors"):
        path = tmp_path / f"000003.{ending}"
        content = path.read_bytes()
        for length in range(len(content)):
            path.write_bytes(content[:length])
            assert journal.latest()[0] == 2
        path.write_bytes(content)
    assert journal.latest()[0] == 3


@pytest.mark.parametrize("harm", ["cut", "records gone"])
def test_a_journal_without_a_whole_state_is_refused_and_does_not_begin_anew(tmp_path, harm):
    journal = filled(tmp_path)
    for path in tmp_path.glob("*.json"):
        path.write_bytes(path.read_bytes()[:-5]) if harm == "cut" else path.unlink()

    with pytest.raises(PlanError, match=r"journal is whole \((communication round 3: its record|all records)"):
        journal.latest()


def test_a_first_comm_round_that_was_never_whole_is_begun_anew(tmp_path):
    journal = filled(tmp_path, comm_rounds=1)
    (tmp_path / "000001.json").unlink()

    assert journal.latest() is None


def test_a_file_of_another_program_is_left_alone(tmp_path):
    foreign = {"notes.json": "{}", ".DS_Store": "", "000009.json.bak": "", "x.safetensors": ""}
    for name, text in foreign.items():
        (tmp_path / name).write_text(text)
    journal = filled(tmp_path, comm_rounds=5)

    assert journal.latest()[0] == 5
    assert all((tmp_path / name).read_text() == text for name, text in foreign.items())


def test_a_run_taken_back_writes_its_later_comm_rounds_anew(tmp_path):
    journal = filled(tmp_path)

    journal.save(2, {"w": np.zeros(1)}, {})

    assert journal.latest()[0] == 2


def of_a_chain(folder, comm_rounds, every=4):
    """The journal of a chain that aggregates at every fourth communication round."""
    journal = FileJournal(folder)
    for comm_round in range(1, comm_rounds + 1):
        journal.save(
            comm_round, {"w": np.full(4, float(comm_round))}, {"contact": comm_round}, lasting=comm_round % every == 0
        )
    return journal


def test_a_state_after_an_aggregation_stays_and_there_are_twenty_at_most(tmp_path):
    journal = of_a_chain(tmp_path, 90)

    assert journal.comm_rounds() == [*range(12, 89, 4), 89, 90]
    assert len(list(tmp_path.iterdir())) == 2 * 22


def test_what_stays_is_known_to_the_next_program_that_opens_the_journal(tmp_path):
    of_a_chain(tmp_path, 6)

    FileJournal(tmp_path).save(9, {"w": np.zeros(1)}, {})

    assert FileJournal(tmp_path).comm_rounds() == [4, 9]


def test_a_run_goes_back_to_a_state_and_forgets_what_came_after_it(tmp_path):
    journal = of_a_chain(tmp_path, 10)

    journal.go_back(4)

    assert FileJournal(tmp_path).latest()[0] == 4
    assert FileJournal(tmp_path).comm_rounds() == [4]


@pytest.mark.parametrize("harm", ["never written", "damaged"])
def test_a_state_that_is_not_there_whole_is_refused_and_nothing_is_lost(tmp_path, harm):
    journal = of_a_chain(tmp_path, 10)
    if harm == "damaged":
        (tmp_path / "000004.safetensors").write_bytes(b"")

    with pytest.raises(PlanError, match=r"No whole state of communication round \d is in .*There are: 4, 8, 9, 10\."):
        journal.go_back(4 if harm == "damaged" else 5)

    assert journal.latest()[0] == 10


def test_states_of_the_first_release_open(tmp_path):
    journal = of_a_chain(tmp_path, 2)
    path = tmp_path / "000002.json"
    card = json.loads(path.read_bytes().partition(b"\n")[2])
    del card["lasting"]
    text = json.dumps(card)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")

    assert journal.latest()[0] == 2
    FileJournal(tmp_path).save(9, {}, {})
    assert FileJournal(tmp_path).comm_rounds() == [9]


def write_for_ever(folder):
    journal = FileJournal(folder)
    for comm_round in itertools.count(1):
        journal.save(comm_round, {"w": np.full(20000, float(comm_round))}, {"contact": comm_round})


def test_a_writer_killed_at_any_moment_leaves_a_whole_state(tmp_path):
    for delay in (0.05, 0.11, 0.17):
        folder = tmp_path / str(delay)
        process = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(folder,))
        process.start()
        while not (folder.exists() and any(folder.glob("*.json"))):
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(delay)
        process.kill()
        process.join()

        comm_round, arrays, meta = FileJournal(folder).latest()

        assert meta == {"contact": comm_round}
        assert (arrays["w"] == comm_round).all()


def test_when_all_newest_states_are_damaged_it_says_so_and_names_the_older_one(tmp_path):
    journal = FileJournal(tmp_path)
    for comm_round in range(1, 8):
        journal.save(comm_round, {"w": np.full(2, comm_round)}, {}, lasting=comm_round == 2)
    damaged = sorted(tmp_path.glob("*.safetensors"))[-3:]
    for path in damaged[1:]:
        path.write_bytes(b"x")
    assert journal.latest()[0] == 5  # two may be a crash's
    damaged[0].write_bytes(b"x")

    with pytest.raises(
        PlanError, match=r"last 3 states .* damaged \(communication round 7: its arrays.*resume RUN --from 2"
    ):
        journal.latest()

    journal.go_back(2)
    assert journal.latest()[0] == 2
