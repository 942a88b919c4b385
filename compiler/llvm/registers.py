"""Elements of local buffers that are known as SSA values between loops and branches.

A register tile is written thousands of times in an unrolled body. Stored and loaded each time, LLVM
would have to find out that nothing else happens; here a value goes to memory only where control
flow may join, and what is never read again goes nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tunefarm.compiler.expr.affine import Affine
from tunefarm.compiler.llvm.writer import Value


@dataclass(slots=True)
class _File:
    """The known elements of one buffer, by constant offset; all of one width."""

    promoted: bool = False
    width: int = -1
    usable: bool = True
    values: dict[int, Value] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)


class Registers:
    """Known elements of the local buffers in scope; `store` writes one to memory."""

    def __init__(self, store: Callable[[str, Affine, Value], None]) -> None:
        self._store = store
        self._files: dict[str, _File] = {}

    def add(self, buffer: str, promoted: bool = False) -> None:
        """A local buffer comes into scope, with undefined contents.

        `promoted` says that it is to stay in registers wherever control flow joins.
        """
        self._files[buffer] = _File(promoted)

    def remove(self, buffer: str) -> None:
        """A buffer goes out of scope: what is not in memory is not needed."""
        self._files.pop(buffer, None)

    def get(self, buffer: str, form: Affine, width: int) -> Value | None:
        """The element or vector if it is known; memory is up to date where it is not."""
        file = self._files.get(buffer)
        if file is None:
            return None
        if not self._fits(file, form, width):
            self._flush(buffer, file)
            return None
        return file.values.get(form.constant)

    def peek(self, buffer: str, offset: int, width: int) -> Value | None:
        """The vector at a constant offset if it is known; changes nothing."""
        file = self._files.get(buffer)
        if file is None or not file.usable or file.width != width:
            return None
        return file.values.get(offset)

    def promotes(self, buffer: str) -> bool:
        """The buffer is to stay in registers wherever control flow joins."""
        file = self._files.get(buffer)
        return file is not None and file.promoted

    def width(self, buffer: str) -> int:
        """The one width of the buffer's elements; -1 where there is none, or not known yet."""
        file = self._files.get(buffer)
        return file.width if file is not None and file.usable else -1

    def holds(self, buffer: str) -> bool:
        """Some of the buffer may be here rather than in memory."""
        return buffer in self._files

    def keep(self, buffer: str, form: Affine, value: Value) -> None:
        """Remember what was just loaded."""
        file = self._files.get(buffer)
        if file is not None and self._fits(file, form, value.width):
            file.values[form.constant] = value

    def set(self, buffer: str, form: Affine, value: Value) -> bool:
        """Take a store; False where it has to go to memory."""
        file = self._files.get(buffer)
        if file is None:
            return False
        if not self._fits(file, form, value.width):
            self._flush(buffer, file)
            file.values.clear()
            return False
        file.values[form.constant] = value
        file.dirty.add(form.constant)
        return True

    def release(self, buffer: str) -> None:
        """Keep the buffer in memory alone from now on."""
        file = self._files.get(buffer)
        if file is not None:
            self._flush(buffer, file)
            file.values.clear()
            file.usable = False

    def flush(self) -> None:
        """Bring memory up to date; the values stay known."""
        for buffer, file in self._files.items():
            if file.dirty:
                self._flush(buffer, file)

    def join(self) -> None:
        """Control flow joins here: bring memory up to date and forget the values."""
        for buffer, file in self._files.items():
            if file.dirty:
                self._flush(buffer, file)
            file.values.clear()

    @staticmethod
    def _fits(file: _File, form: Affine, width: int) -> bool:
        """A constant, aligned offset and the buffer's one width; a second width ends its use."""
        if not file.usable or form.terms:
            return False
        if file.width < 0:
            file.width = width
        if file.width != width or form.constant % max(width, 1):
            file.usable = False
            return False
        return True

    def _flush(self, buffer: str, file: _File) -> None:
        for offset in sorted(file.dirty):
            self._store(buffer, Affine(offset, ()), file.values[offset])
        file.dirty.clear()
