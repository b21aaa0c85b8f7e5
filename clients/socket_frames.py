"""Frames over a Unix socket, between the program that speaks to the network and its data process."""

import os
import socket
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedsmall.frames import LENGTHS, FrameError, Header, arrays_of_block, header_of, lengths, to_frame
from fedsmall.wire import Arrays

LONGEST_PATH = 100  # the system's limit for a socket's path is 104 or 108
CALL_S = 60.0  # how long a caller may take to say what it wants
DATA_PROCESS_START_S = 90.0  # a data process that was restarted loads torch and the data first

Answering = Callable[[str, Mapping[str, Any], Arrays], tuple[Header, Arrays]]


class LineError(ConnectionError):
    """The other end sent no frame, or went away within one."""


def send(line: socket.socket, header: Header, arrays: Arrays) -> None:
    """Send one frame."""
    line.sendall(to_frame(header, arrays))


def receive(line: socket.socket) -> tuple[Header, Arrays]:
    """Receive one frame. Raises LineError where it is none."""
    try:
        words, arrays = lengths(_exactly(line, LENGTHS.size))
        return header_of(_exactly(line, words)), arrays_of_block(_exactly(line, arrays))
    except FrameError as error:
        raise LineError(str(error)) from None


def ask(path: str, frame: bytes, wait_s: float = DATA_PROCESS_START_S) -> bytes:
    """The answer to a frame from the socket at ``path``. OSError for none in time, LineError where it goes away."""
    deadline = time.monotonic() + wait_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        while True:
            try:
                line.connect(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        try:
            line.sendall(frame)
            start = _exactly(line, LENGTHS.size)
            return bytes(start + _exactly(line, sum(lengths(start))))
        except FrameError as error:
            raise LineError(str(error)) from None
        except ConnectionError:
            raise LineError("the other end went away") from None


def check_length(path: Path) -> None:
    """Raise ValueError where the path is too long for a socket."""
    if (length := len(os.fsencode(path.absolute()))) > LONGEST_PATH:
        long = f"the path of the data process's socket has {length} bytes, the system allows {LONGEST_PATH}"
        raise ValueError(f"{long}; use a shorter folder, with --home")


def is_answered(path: Path) -> bool:
    """Whether a data process listens at a path now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(str(path))
        except OSError:
            return False
    return True


def listen(path: Path) -> socket.socket:
    """A listening socket at ``path`` that only this user can reach: folder 0700, socket 0600, else ValueError."""
    check_length(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if stat.S_IMODE(path.parent.stat().st_mode) & 0o077:
        raise ValueError("the socket's folder must be its owner's alone: chmod 700")
    path.unlink(missing_ok=True)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # the socket must not be open to others for even a moment
    try:
        line.bind(str(path))
    finally:
        os.umask(before)
    line.listen(4)
    return line


def serve(path: Path, answer: Answering, ready: str) -> None:
    """Answer one caller after the other for ever: a message's kind, config and arrays. ``ready`` is printed first."""
    with listen(path) as listening:
        print(ready, flush=True)
        while True:
            caller, _ = listening.accept()
            with caller:
                caller.settimeout(CALL_S)
                try:
                    header, arrays = receive(caller)
                    config = header.get("config")
                    config = config if isinstance(config, dict) else {}
                    send(caller, *answer(str(header.get("kind")), config, arrays))
                except OSError as error:
                    print(f"a caller went away: {type(error).__name__}", flush=True)


def _exactly(line: socket.socket, count: int) -> bytearray:
    content = bytearray()
    while len(content) < count:
        chunk = line.recv(min(count - len(content), 1 << 20))
        if not chunk:
            raise LineError("the other end went away in the middle of a frame")
        content += chunk
    return content
