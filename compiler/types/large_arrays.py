"""Large constants lie in temporary files that are mapped, and not in a process's own memory.

A model of gigabytes goes through stages that each make arrays of their own. What lies in a file is
in memory only while it is read: `release` gives its pages back, and the system reads them again
from its cache, or from the disk. Models of less than `FREE_BYTES` stay in memory.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from typing import BinaryIO
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.types.tensor_type import Array

FREE_BYTES = 1 << 28
"""Of large arrays that a process keeps in its memory."""
LEAST_BYTES = 1 << 20
"""Of an array that is worth a place in a file."""
_FILE_BYTES = 1 << 28  # several arrays share a file, since each file takes a descriptor
_HELD_BYTES = 1 << 26  # that may be read before pages are given back
_ALIGNMENT = 64  # a cache line


class _Files:
    """The files of a process: what is mapped, and the one that arrays are written to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapped: WeakSet[mmap.mmap] = WeakSet()
        self._by_file: WeakValueDictionary[tuple[int, ...], mmap.mmap] = WeakValueDictionary()
        self._in_memory: WeakValueDictionary[int, Array] = WeakValueDictionary()
        self._file: mmap.mmap | None = None
        self._end = 0
        self._read = 0

    def add(self, file: BinaryIO) -> mmap.mmap:
        """See `mapped`."""
        state = os.fstat(file.fileno())
        key = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
        with self._lock:
            memory = self._by_file.get(key)
            if memory is None:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._by_file[key] = memory
                self._mapped.add(memory)
        return memory

    def kept(self, array: Array) -> Array:
        """See `kept`."""
        owner = owner_of(array)
        if owner.nbytes < LEAST_BYTES or array.dtype.hasobject or is_mapped(owner):
            return array
        with self._lock:
            used = sum(item.nbytes for item in self._in_memory.values())
            place = None
            if id(owner) in self._in_memory or used + owner.nbytes <= FREE_BYTES:
                self._in_memory[id(owner)] = owner
            else:
                place = self._place(array.nbytes)
        if place is not None:
            copy: Array = place.view(array.dtype).reshape(array.shape)
            np.copyto(copy, array)
            copy.flags.writeable = False
            array = copy
        self.release(array.nbytes)
        return array

    def empty(self, count: int) -> npt.NDArray[np.uint8]:
        """See `empty`."""
        with self._lock:
            used = sum(item.nbytes for item in self._in_memory.values())
            is_large = used + count > FREE_BYTES
            place = self._place(count) if is_large and count >= LEAST_BYTES else None
            if place is None:
                place = np.empty(count, np.uint8)
                self._in_memory[id(place)] = place
        return place

    def _place(self, count: int) -> npt.NDArray[np.uint8] | None:
        """So many bytes of a file that has no name any more; None where there is no room."""
        if self._file is None or self._end + count > len(self._file):
            size = max(count, _FILE_BYTES)
            try:
                with tempfile.TemporaryFile(prefix="tunefarm-constants-") as file:
                    os.posix_fallocate(file.fileno(), 0, size)  # an error here, no signal later
                    self._file, self._end = mmap.mmap(file.fileno(), size), 0
            except OSError:  # no room, or a file system without files of a given size
                return None
            self._mapped.add(self._file)
        place = np.frombuffer(self._file, np.uint8, count, self._end)
        self._end += count + -count % _ALIGNMENT
        return place

    def release(self, count: int) -> None:
        """See `release`."""
        with self._lock:
            self._read += count
            if self._read < _HELD_BYTES:
                return
            self._read = 0
            mapped = list(self._mapped)
        for memory in mapped:
            memory.madvise(mmap.MADV_DONTNEED)


def owner_of(array: Array) -> Array:
    """What has the memory of an array that may be a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def is_mapped(owner: Array) -> bool:
    """Whether what has the memory of an array is a mapped file."""
    base = owner.base
    return isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)


_FILES = _Files()


def mapped(file: BinaryIO) -> mmap.mmap:
    """The bytes of an open file that is not empty; a file is mapped once."""
    return _FILES.add(file)


def kept(array: Array) -> Array:
    """The array, read-only and in a file if it is large and others fill the memory meant for them.

    A part of a larger array counts as that one, whose memory it holds. The array stays as it is
    where the folder of temporary files has no room.
    """
    return _FILES.kept(array)


def empty(count: int) -> npt.NDArray[np.uint8]:
    """So many bytes that are not set, where `kept` would have them."""
    return _FILES.empty(count)


def release(count: int) -> None:
    """So many bytes of large arrays were read: from time to time their pages are given back."""
    _FILES.release(count)
