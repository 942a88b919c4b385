"""Frames between a supervisor and its worker process: length, checksum, JSON fields and a blob.

The parent never unpickles what a worker says: a worker runs foreign code and may be damaged.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tunefarm.compiler.errors import MeasureError

_MAGIC = b"tfm1"
_SIZES = struct.Struct("<4sIQQ")  # magic, crc32 of the body, bytes of JSON, bytes of blob
_HEADER = struct.Struct(f"<{_SIZES.size}sI")  # those, and their own crc32


class MessageError(MeasureError):
    """A frame is damaged: the stream cannot be trusted any more."""


@dataclass(frozen=True, slots=True)
class Message:
    """JSON-safe fields and raw bytes that belong to them."""

    fields: Mapping[str, Any]
    blob: bytes = field(default=b"", repr=False)


def encode(message: Message) -> bytes:
    """The message as one frame."""
    text = json.dumps(message.fields, separators=(",", ":")).encode()
    checksum = zlib.crc32(message.blob, zlib.crc32(text))
    sizes = _SIZES.pack(_MAGIC, checksum, len(text), len(message.blob))
    return _HEADER.pack(sizes, zlib.crc32(sizes)) + text + message.blob


class Decoder:
    """Cuts a byte stream into messages. `feed` what arrives, then take messages with `next`."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._buffer += data

    @property
    def missing(self) -> int:
        """Bytes until more can be said: of a header, or of the frame that it tells of."""
        frame = self._frame()
        return (_HEADER.size if frame is None else frame[0]) - len(self._buffer)

    def next(self) -> Message | None:
        """The next complete message, or None until more arrives; raises MessageError on damage."""
        frame = self._frame()
        if frame is None or len(self._buffer) < frame[0]:
            return None
        end, text_bytes, checksum = frame
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        if zlib.crc32(body) != checksum:
            raise MessageError("a frame's checksum does not match its contents")
        fields = json.loads(body[:text_bytes])
        if not isinstance(fields, dict):
            raise MessageError("a frame does not hold an object")
        return Message(fields, body[text_bytes:])

    def _frame(self) -> tuple[int, int, int] | None:
        """Where the frame ends, its bytes of JSON, its checksum; None until its header is there."""
        if len(self._buffer) < _HEADER.size:
            return None
        sizes, own_checksum = _HEADER.unpack_from(self._buffer)
        magic, checksum, text_bytes, blob_bytes = _SIZES.unpack(sizes)
        if magic != _MAGIC or own_checksum != zlib.crc32(sizes):
            raise MessageError(f"not the start of a frame: {bytes(self._buffer[:8])!r}")
        return _HEADER.size + text_bytes + blob_bytes, text_bytes, checksum


def read_message(stream: BinaryIO) -> Message | None:
    """Read one message from a blocking stream; None at its end."""
    decoder = Decoder()
    read = 0
    while (message := decoder.next()) is None:
        wanted = decoder.missing
        data = stream.read(wanted)
        if not data and not read:
            return None
        if len(data) < wanted:
            raise MessageError("the stream ended inside a frame")
        decoder.feed(data)
        read += len(data)
    return message


def write_message(stream: BinaryIO, message: Message) -> None:
    """Write one message to a blocking stream and flush it."""
    stream.write(encode(message))
    stream.flush()


# What is in flight: a number that a process leaves where its parent finds it after its death.

_NUMBER = struct.Struct("<q")
IN_FLIGHT_BYTES = _NUMBER.size
NOBODY = -1


class InFlight:
    """The child's side."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` of the file of `IN_FLIGHT_BYTES`; -1 for memory that nobody reads."""
        self._number = memoryview(mmap.mmap(descriptor, IN_FLIGHT_BYTES)).cast("q")

    def note(self, number: int) -> None:
        """From now on this number is in flight."""
        self._number[0] = number


def write_in_flight(descriptor: int, number: int) -> None:
    """Give the file its size and this number: the parent's side, before a request."""
    os.pwrite(descriptor, _NUMBER.pack(number), 0)


def read_in_flight(descriptor: int) -> int | None:
    """The number last noted; None for nobody's."""
    (number,) = _NUMBER.unpack(os.pread(descriptor, IN_FLIGHT_BYTES, 0))
    return None if number == NOBODY else int(number)
