"""A file is written whole or not at all, a full disk is told as one, and another's words are one harmless line."""

import errno
import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsmall.files import DiskFullError, one_line, write


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("flush", [True, False])
def test_a_file_is_replaced_and_nothing_is_left_beside(tmp_path, flush):
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    (tmp_path / "state.json.new").write_bytes(b"what a killed writer left")

    write(path, b"new", flush=flush)

    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_mode_that_is_there_stays_and_a_new_file_gets_the_one_that_is_asked_for(tmp_path):
    before = os.umask(0o077)
    try:
        write(tmp_path / "open", b"", mode=0o644)
        os.umask(0o022)
        write(tmp_path / "plain", b"")
        write(tmp_path / "own", b"", mode=0o600)
        write(tmp_path / "own", b"again", mode=0o644)
    finally:
        os.umask(before)

    assert [mode(tmp_path / name) for name in ("open", "plain", "own")] == [0o644, 0o644, 0o600]


def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    path.write_bytes(b"old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(DiskFullError, match=r"^the disk is full: there is no room to write state\.json$"):
        write(path, b"new", flush=True)

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


SMALL_DISK = """
mount -t tmpfs -o size=64k none "$1" && exec "$2" -c '
import sys, pathlib
from fedsmall.files import DiskFullError, write
path = pathlib.Path(sys.argv[1]) / "model"
write(path, b"old")
try:
    write(path, bytes(1_000_000))
except DiskFullError as error:
    write(path.with_name("reason"), str(error).encode())
    print(path.read_bytes(), path.with_name("reason").read_text())
' "$1"
"""


def test_on_a_disk_that_is_really_full_there_is_room_for_the_reason(tmp_path):
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, "sh", str(tmp_path), sys.executable]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("this system has no unshare")
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("a disk of one's own cannot be mounted here")

    assert done.stdout.strip() == "b'old' the disk is full: there is no room to write model", done.stderr


def test_another_error_of_the_system_stays_what_it_is(tmp_path):
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "nowhere" / "file", b"")


HOSTILE = {
    "two\r\nlines": "two lines",
    "\x1b[2Jgone": "\N{REPLACEMENT CHARACTER}[2Jgone",
    "\x9b31m": "\N{REPLACEMENT CHARACTER}31m",
    "abc\u202ecba": "abc\N{REPLACEMENT CHARACTER}cba",
    "a\u2066b\u200fc\u200bd": "a\ufffdb\ufffdc\ufffdd",
    "\ud800": "\N{REPLACEMENT CHARACTER}",
    "[red]kept[/]": "[red]kept[/]",
    "Köln, 5 µg": "Köln, 5 µg",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_could_move_a_terminal_is_replaced_and_the_rest_stays(text):
    assert one_line(text) == HOSTILE[text]


@given(st.text(st.characters(), max_size=40))
def test_one_line_is_one_line_that_can_be_printed(text):
    line = one_line(text, 30)

    assert line.isprintable()
    assert len(line) <= 30
    assert one_line(line).strip() == line.strip()
