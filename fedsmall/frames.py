"""A frame: JSON for words, safetensors for arrays, nothing pickled; for sockets and Flower messages alike.

It is two lengths (unsigned, 8 bytes, big end first), a JSON object and a safetensors block. Lengths are checked before
anything is read, and safetensors' header against the block: a broken frame costs no memory.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedsmall.wire import Arrays

LENGTHS = struct.Struct(">QQ")
MOST_HEADER_BYTES = 4 << 20
MOST_ARRAYS_BYTES = 4 << 30
SMALL_BYTES = 64 << 10  # a block up to here is not worth a call of its own
WHOLE_BYTES = 1 << 20  # of one piece: it is sent in its message, not as an object beside it
PIECE_BYTES = 4 << 20  # a gate passes no call of any size, so that a frame travels in pieces

# Keys of the records in which a piece travels.
PIECE, NUMBER, COUNT = "piece", "number", "count"

Header = dict[str, Any]


class FrameError(ValueError):
    """What came is no frame."""


def to_frame(header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """Words and arrays as one frame."""
    return with_block(header, block_of(arrays))


def block_of(arrays: Arrays) -> bytes:
    """Arrays as a safetensors block; no arrays are no bytes."""
    return save(arrays) if arrays else b""


def with_block(header: Mapping[str, Any], block: bytes | memoryview) -> bytes:
    """A frame of words and of a safetensors block as it came."""
    text = json.dumps(header).encode()
    return b"".join((LENGTHS.pack(len(text), len(block)), text, block))


def lengths(start: bytes | bytearray | memoryview) -> tuple[int, int]:
    """The bytes of words and of arrays that follow the first 16; FrameError where they are more than is taken."""
    words, arrays = LENGTHS.unpack(start)
    if words > MOST_HEADER_BYTES or arrays > MOST_ARRAYS_BYTES:
        raise FrameError("a frame of this length is not taken")
    return words, arrays


def header_and_block(frame: bytes) -> tuple[Header, memoryview]:
    """A frame's words, read, and its arrays, unread. FrameError where it is none."""
    if len(frame) < LENGTHS.size:
        raise FrameError("the frame has no lengths")
    words, arrays = lengths(memoryview(frame)[: LENGTHS.size])
    if len(frame) != LENGTHS.size + words + arrays:
        raise FrameError("the frame is shorter or longer than it says")
    end = LENGTHS.size + words
    return header_of(frame[LENGTHS.size : end]), memoryview(frame)[end:]


def header_of(text: bytes | bytearray) -> Header:
    """The words of a frame. FrameError where they are no JSON object, or hold a whole number beyond 64 bits."""
    try:
        header = json.loads(text, parse_int=_small_int)
    except (ValueError, RecursionError):
        raise FrameError("the frame holds no JSON") from None
    if not isinstance(header, dict):
        raise FrameError("the frame's header is no JSON object")
    return header


def arrays_of_block(block: bytes | bytearray | memoryview) -> Arrays:
    """The arrays of a frame. FrameError where they are none that numpy has."""
    try:
        return load(bytes(block)) if len(block) else {}
    except (ValueError, LookupError, TypeError, AttributeError, SafetensorError):
        raise FrameError("the frame holds no safetensors") from None


def from_frame(frame: bytes) -> tuple[Header, Arrays]:
    """Words and arrays of a frame; FrameError where it is none."""
    header, block = header_and_block(frame)
    return header, arrays_of_block(block)


def pieces_of(frame: bytes) -> list[dict[str, Any]]:
    """A frame as numbered pieces, each small enough for one call."""
    return _numbered(cuts_of(frame))


def cuts_of(content: bytes) -> list[bytes]:
    """Bytes cut into stretches, each small enough for one call."""
    return [content[cut : cut + PIECE_BYTES] for cut in range(0, len(content), PIECE_BYTES)]


def pieces_with(header: Mapping[str, Any], cuts: Sequence[bytes]) -> list[dict[str, Any]]:
    """A frame of words and of a block that is cut already, in pieces.

    Beside a large block the words are a piece of their own: frames that differ in words alone share the rest.
    """
    size = sum(map(len, cuts))
    start = with_block(header, b"")[LENGTHS.size :]
    start = LENGTHS.pack(len(start), size) + start
    return _numbered([start, *cuts] if size > SMALL_BYTES else cuts_of(b"".join([start, *cuts])))


def _numbered(contents: Sequence[bytes]) -> list[dict[str, Any]]:
    return [{NUMBER: n, COUNT: len(contents), PIECE: content} for n, content in enumerate(contents)]


def join_pieces(pieces: Iterable[Mapping[str, Any]]) -> bytes:
    """The frame of which these are the pieces, in any order. FrameError where one is missing or comes twice."""
    by_number: dict[int, bytes] = {}
    counts = set()
    for piece in pieces:
        number, count, content = piece.get(NUMBER), piece.get(COUNT), piece.get(PIECE)
        if type(number) is not int or type(count) is not int or not isinstance(content, bytes):
            raise FrameError("what came is no piece of a frame")
        if number in by_number:
            raise FrameError("a piece of the frame came twice")
        by_number[number] = content
        counts.add(count)
    if counts != {len(by_number)} or set(by_number) != set(range(len(by_number))):
        raise FrameError("a piece of the frame is missing")
    return b"".join(by_number[number] for number in sorted(by_number))


def pieces_in(tree: Any) -> list[str]:
    """The ids of a frame's pieces, each once: a tree of objects has nothing else, or under a message and its record."""
    under = [piece for record in tree.children for piece in record.children]
    return list(dict.fromkeys(node.object_id for node in under or [tree, *tree.children]))


def _small_int(text: str) -> int:
    value = int(text) if len(text) < 32 else 1 << 64
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a whole number beyond 64 bits")
    return value
