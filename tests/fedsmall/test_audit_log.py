"""The logbook: whatever is changed, removed or put in later shows; a crash costs at most the line being written."""

import json
import multiprocessing
import stat

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsmall.audit_log import FIRST, AuditLog, digest_of, manifest, verify


@pytest.fixture
def book(tmp_path):
    book = AuditLog(tmp_path / "log.jsonl")
    for t in range(1, 6):
        book.write("sent", run="r", t=t, bytes=10 * t)
    return book


def test_an_untouched_log_holds(book):
    found = verify(book.path)

    assert found.lines == 5
    assert found.fault is None
    assert found.head == list(book.entries())[-1]["digest"]
    assert next(book.entries())["before"] == FIRST
    assert stat.S_IMODE(book.path.stat().st_mode) == 0o600


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_changed_byte_shows(book, data):
    content = bytearray(book.path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 2))
    flipped = content[place] ^ data.draw(st.integers(1, 127))
    changed = book.path.with_name("changed.jsonl")
    changed.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])

    found = verify(changed)

    assert found.fault is not None
    assert found.lines == content[:place].count(b"\n")


@pytest.mark.parametrize("harm", ["remove", "swap", "repeat", "forge"])
def test_lines_cannot_be_removed_moved_or_put_in(book, harm):
    lines = book.path.read_bytes().splitlines(keepends=True)
    match harm:
        case "remove":
            del lines[2]
        case "swap":
            lines[2], lines[3] = lines[3], lines[2]
        case "repeat":
            lines.insert(2, lines[1])
        case "forge":  # a line of its own right digest, but of no chain
            other = AuditLog(book.path.with_name("other.jsonl"))
            other.write("sent", run="r", t=3, bytes=1)
            lines[2] = other.path.read_bytes()
    book.path.write_bytes(b"".join(lines))

    found = verify(book.path)

    assert found.lines == 2
    assert "line 3 does not follow" in found.fault


def test_a_half_written_line_is_cut_off_and_the_next_says_so(book):
    content = book.path.read_bytes()
    book.path.write_bytes(content + b'{"n":6,"ti')
    assert "half-written" in verify(book.path).fault

    entry = book.write("sent", t=6)

    assert entry["cut"] == 10
    assert verify(book.path) == (6, entry["digest"], None)


def _write(path):
    for _ in range(25):
        AuditLog(path).write("sent")


def test_two_processes_may_write_at_once(tmp_path):
    path = tmp_path / "log.jsonl"
    writers = [multiprocessing.get_context("fork").Process(target=_write, args=(path,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert verify(path)[::2] == (50, None)


def test_names_of_the_log_itself_are_refused(book):
    with pytest.raises(ValueError, match="the log itself writes time"):
        book.write("sent", time=3)


def test_no_log_is_said_so(tmp_path):
    with pytest.raises(ValueError, match="no log yet"):
        verify(tmp_path / "log.jsonl")


def test_a_manifest_holds_shapes_and_no_number(tmp_path):
    arrays = {"w": np.array([[123.456, 2.0]]), "n": np.int64(7) * np.ones((), np.int64)}

    told = manifest(arrays)

    assert told["arrays"] == {"n": [], "w": [1, 2]}
    assert told["bytes"] == 24
    assert "123" not in json.dumps(told["arrays"])


def test_the_digest_sees_names_shapes_dtypes_and_bits():
    base = {"w": np.zeros((2, 3), np.float32)}
    others = [
        {"v": np.zeros((2, 3), np.float32)},
        {"w": np.zeros((3, 2), np.float32)},
        {"w": np.zeros((2, 3), np.int32)},
        {"w": np.array([[0, 0, 0], [0, 0, -0.0]], np.float32)},
    ]

    assert len({digest_of(arrays) for arrays in [base, *others]}) == 5
    assert digest_of(base) == digest_of({"w": np.asfortranarray(base["w"])})


def test_a_line_longer_than_the_tail_that_is_read_is_found(book):
    book.write("sent", names=["layer" * 20] * 1000)

    book.write("sent", t=7)

    assert verify(book.path)[::2] == (7, None)


def test_the_last_line_is_known_from_the_end_alone_and_what_is_always_said_is_in_every_line(tmp_path):
    log = AuditLog(tmp_path / "log.jsonl", run="r")
    assert log.last() == (0, FIRST)
    for _ in range(3):
        entry = log.write("sent", note="x" * 20_000)

    assert log.last() == (3, entry["digest"])
    assert {line["run"] for line in log.entries()} == {"r"}
    with log.path.open("ab") as file:
        file.write(b'{"half')
    assert log.last() == (3, entry["digest"])
    log.path.write_bytes(b"[]\n")
    with pytest.raises(ValueError, match="none of this log's"):
        log.last()
