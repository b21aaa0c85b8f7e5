"""The line carries words and arrays to the bit, refuses everything else, and is open to its own user alone."""

import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsmall.clients import socket_frames


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(5)
        other.settimeout(5)
        yield one, other


def test_words_and_arrays_arrive_to_the_bit(pair):
    arrays = {
        "arrays/w": np.array([[1.5, np.nan], [-0.0, 3e-45]], np.float32),
        "arrays/n": np.array(7, np.int64),
        "arrays/none": np.zeros((0, 3), np.float64),
    }

    socket_frames.send(pair[0], {"kind": "train", "config": {"t": 1}}, arrays)
    words, came = socket_frames.receive(pair[1])

    assert words == {"kind": "train", "config": {"t": 1}}
    assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in came.items()} == {
        name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()
    }


def receive(content):
    one, other = socket.socketpair()
    with one, other:
        writer = threading.Thread(target=lambda: (one.sendall(content), one.shutdown(socket.SHUT_WR)))
        writer.start()
        try:
            return socket_frames.receive(other)
        finally:
            writer.join()


@given(st.binary(max_size=200))
def test_random_bytes_are_no_frame(content):
    try:
        words, _ = receive(content)
    except socket_frames.LineError:
        return
    assert isinstance(words, dict)  # the rare random frame of no arrays and an empty object


@pytest.mark.parametrize(
    "frame",
    [
        socket_frames.LENGTHS.pack(1 << 62, 0),
        socket_frames.LENGTHS.pack(2, 1 << 62) + b"{}",
        socket_frames.LENGTHS.pack(2, 8) + b"{}" + b"\xff" * 8,
        socket_frames.LENGTHS.pack(2, 0) + b"[]",
        socket_frames.LENGTHS.pack(9, 0) + b"{",
    ],
)
def test_a_broken_frame_is_refused_and_costs_no_memory(frame):
    with pytest.raises(socket_frames.LineError):
        receive(frame)


def test_only_its_own_user_reaches_the_socket(tmp_path):
    path = tmp_path / "door" / "station"
    with socket_frames.listen(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


NOBODY = 65534


def reached_by(user, path):
    """Whether a process of this user can connect to a socket; it is forked, for it may not be allowed to run Python."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        socket.socket(socket.AF_UNIX).connect(str(path))
    except PermissionError:
        os._exit(1)
    except BaseException:
        os._exit(2)
    os._exit(0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can try it as another user")
def test_another_user_of_the_machine_cannot_reach_the_station():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "door" / "station"
        with socket_frames.listen(path):
            as_another = reached_by(NOBODY, path)
            os.chmod(path.parent, 0o755)
            os.chmod(path, 0o666)
            were_it_open = reached_by(NOBODY, path)

    assert were_it_open
    assert not as_another


def test_an_open_folder_or_a_long_path_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    os.chmod(tmp_path / "open", 0o755)

    with pytest.raises(ValueError, match="chmod 700"):
        socket_frames.listen(tmp_path / "open" / "station")
    with pytest.raises(ValueError, match="--home"):
        socket_frames.listen(tmp_path / ("x" * 120) / "station")
