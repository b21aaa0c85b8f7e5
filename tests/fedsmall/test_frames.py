"""Frames carry words and arrays to the bit, in pieces where they are large, and refuse everything else."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsmall import frames
from fedsmall.frames import FrameError

ARRAYS = {
    "arrays/w": np.array([[1.5, np.nan], [-0.0, 3e-45]], np.float32),
    "arrays/n": np.array(7, np.int64),
    "arrays/none": np.zeros((0, 3), np.float64),
}


def bits(arrays):
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}


def test_words_and_arrays_come_back_to_the_bit():
    words, arrays = frames.from_frame(frames.to_frame({"config": {"t": 1, "rate": 0.1}}, ARRAYS))

    assert words == {"config": {"t": 1, "rate": 0.1}}
    assert bits(arrays) == bits(ARRAYS)


def test_arrays_can_be_passed_on_unread():
    frame = frames.to_frame({"config": {}}, ARRAYS)

    passed = frames.with_block({"kind": "train"}, frames.header_and_block(frame)[1])

    assert frames.from_frame(passed)[0] == {"kind": "train"}
    assert bits(frames.from_frame(passed)[1]) == bits(ARRAYS)


def test_a_large_frame_travels_in_pieces_that_may_come_in_any_order(monkeypatch):
    monkeypatch.setattr(frames, "PIECE_BYTES", 100)
    frame = frames.to_frame({}, {"w": np.zeros(100)})  # whose pieces are mostly alike

    pieces = frames.pieces_of(frame)

    assert len(pieces) > 5
    assert frames.join_pieces(pieces[::-1]) == frame
    for wrong in (pieces[1:], pieces[:-1], [*pieces, pieces[0]], [], [{"n": 1}], [{**pieces[0], "number": "0"}]):
        with pytest.raises(FrameError, match="piece"):
            frames.join_pieces(wrong)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[]", "no JSON object"),
        (b"{", "no JSON"),
        (b'{"x": 9223372036854775808}', "no JSON"),
        (b"[" * 10**5, "no JSON"),
    ],
)
def test_words_that_are_none_are_refused(text, why):
    with pytest.raises(FrameError, match=why):
        frames.from_frame(frames.LENGTHS.pack(len(text), 0) + text)


def test_a_frame_that_lies_about_its_length_is_refused_before_it_is_read():
    for lie in (frames.LENGTHS.pack(1 << 62, 0), frames.LENGTHS.pack(2, 9) + b"{}", b"short"):
        with pytest.raises(FrameError):
            frames.from_frame(lie)


@given(st.data())
def test_a_frame_changed_anywhere_is_read_or_refused_and_nothing_else(data):
    frame = bytearray(frames.to_frame({"metrics": {"num-examples": 9}}, ARRAYS))
    for place in data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, max_size=4)):
        frame[place] = data.draw(st.integers(0, 255))

    try:
        words, arrays = frames.from_frame(bytes(frame))
    except FrameError:
        return

    assert isinstance(words, dict)
    assert sum(array.nbytes for array in arrays.values()) <= len(frame)
    json.dumps(words)
