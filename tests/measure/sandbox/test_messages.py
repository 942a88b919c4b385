"""Frames survive any cut of the stream, and damage is noticed."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.measure.sandbox.messages import (
    Decoder,
    Message,
    MessageError,
    encode,
    read_message,
    write_message,
)


@given(st.binary(max_size=200), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_messages_survive_any_cut_of_the_stream(blob: bytes, cuts: list[int]) -> None:
    messages = [Message({"n": number}, blob) for number in range(3)]
    data = b"".join(encode(message) for message in messages)
    decoder, received = Decoder(), []
    while data:
        size = cuts[len(data) % len(cuts)]
        decoder.feed(data[:size])
        data = data[size:]
        while (message := decoder.next()) is not None:
            received.append(message)
    assert received == messages


def test_stream_gives_messages_then_none_at_its_end() -> None:
    stream = io.BytesIO()
    write_message(stream, Message({"a": [1, 2.5]}, b"\0\1"))
    stream.seek(0)
    assert read_message(stream) == Message({"a": [1, 2.5]}, b"\0\1")
    assert read_message(stream) is None


@pytest.mark.parametrize("position", [0, 5, 9, 30, -1])
def test_flipped_byte_is_noticed(position: int) -> None:
    data = bytearray(encode(Message({"status": "ok"}, b"object code")))
    data[position] ^= 0x40
    decoder = Decoder()
    with pytest.raises(MessageError):
        decoder.feed(bytes(data))
        decoder.feed(bytes(1 << 10))
        while decoder.next() is not None:
            pass


def test_stream_that_ends_inside_a_frame_is_damage() -> None:
    data = encode(Message({"status": "ok"}, b"object code"))
    for size in (3, len(data) - 1):
        with pytest.raises(MessageError):
            read_message(io.BytesIO(data[:size]))
