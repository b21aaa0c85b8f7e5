"""The line between a relay and its station: a Unix socket, JSON for words, safetensors for arrays, nothing pickled.

A frame is two lengths (unsigned, 8 bytes, big end first), a JSON object and a safetensors block. Lengths are checked
before anything is read, so a broken frame costs no memory.
"""

import json
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedsmall.wire import Arrays

LENGTHS = struct.Struct(">QQ")
MOST_HEADER_BYTES = 4 << 20
MOST_ARRAYS_BYTES = 4 << 30
LONGEST_PATH = 100  # the system's limit for a socket's path is 104 or 108

Header = dict[str, Any]


class LineError(ConnectionError):
    """The other end spoke no frame, or went away in the middle of one."""


def send(line: socket.socket, header: Header, arrays: Arrays) -> None:
    """Send one frame."""
    text, block = json.dumps(header).encode(), save(arrays) if arrays else b""
    line.sendall(LENGTHS.pack(len(text), len(block)))
    line.sendall(text)
    line.sendall(block)


def receive(line: socket.socket) -> tuple[Header, Arrays]:
    """Receive one frame; raises LineError where it is none."""
    header_bytes, arrays_bytes = LENGTHS.unpack(_exactly(line, LENGTHS.size))
    if header_bytes > MOST_HEADER_BYTES or arrays_bytes > MOST_ARRAYS_BYTES:
        raise LineError("a frame of this length is not taken")
    try:
        header = json.loads(_exactly(line, header_bytes))
        arrays = load(bytes(_exactly(line, arrays_bytes))) if arrays_bytes else {}
    except (ValueError, SafetensorError):
        raise LineError("the frame holds no JSON or no safetensors") from None
    if not isinstance(header, dict):
        raise LineError("the frame's header is no JSON object")
    return header, arrays


def check_length(path: Path) -> None:
    """Raise ValueError where the path is too long for a socket."""
    if (length := len(os.fsencode(path.absolute()))) > LONGEST_PATH:
        raise ValueError(
            f"the path of the station's socket has {length} bytes, the system allows {LONGEST_PATH}; "
            "use a shorter folder, with --home"
        )


def listen(path: Path) -> socket.socket:
    """A listening socket at ``path`` that only this user can reach: the folder is 0700, the socket 0600.

    Raises ValueError where the path is too long for the system, or its folder open to others.
    """
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


def _exactly(line: socket.socket, count: int) -> bytearray:
    content = bytearray()
    while len(content) < count:
        chunk = line.recv(min(count - len(content), 1 << 20))
        if not chunk:
            raise LineError("the other end went away in the middle of a frame")
        content += chunk
    return content
