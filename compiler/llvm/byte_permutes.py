"""Bytes of a register in another order: x86's instructions for that, by name.

AVX512-VBMI permutes the bytes of a register at once (vpermb). AVX2 and AVX-512 without that move
words between groups of 16 bytes (vpermd), then bytes within each group (vpshufb).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.target import Target

GROUP = 16  # bytes within which vpshufb moves them
_WORD = 4
_NONE = 0x80  # vpshufb gives 0 for it


@dataclass(frozen=True, slots=True)
class Permutation:
    """The words to move first (none: as they are), then for each byte which one it is."""

    words: tuple[int, ...]
    bytes: tuple[int, ...]


class BytePermuter:
    """Permutes registers of `bytes` bytes; 0 where the target has no instructions for that."""

    def __init__(self, writer: FunctionWriter, target: Target) -> None:
        self.writer = writer
        features = set(target.features)
        wide = "avx512bw" in features and target.vector_bytes >= 64
        self.bytes = 64 if wide else 32 if "avx2" in features else 0
        self.masks_bytes = wide
        self.at_once = wide and "avx512vbmi" in features

    def steps(self, order: Sequence[int | None], loaded: int) -> Permutation | None:
        """How to bring the bytes `order` of a register to its front, None being 0.

        Of the register the first `loaded` bytes are known, and the others 0. None where these
        instructions cannot.
        """
        filled = [*order, *[None] * (self.bytes - len(order))]
        if self.at_once:
            if None in filled and loaded == self.bytes:
                return None
            return Permutation((), tuple(loaded if i is None else i for i in filled))
        words: list[int] = []
        bytes: list[int] = []
        for first in range(0, self.bytes, GROUP):
            group = filled[first : first + GROUP]
            read = sorted({i // _WORD for i in group if i is not None})
            if len(read) > GROUP // _WORD:
                return None
            words += [*read, *[0] * (GROUP // _WORD - len(read))]
            bytes += [
                _NONE if i is None else read.index(i // _WORD) * _WORD + i % _WORD for i in group
            ]
        return Permutation(tuple(words), tuple(bytes))

    def permuted(self, value: Value, steps: Permutation) -> str:
        """The register in another order, as a vector of words."""
        wide = self.bytes == 64
        words, narrow = f"<{self.bytes // _WORD} x i32>", f"<{self.bytes} x i8>"
        text, type = value.text, value.type
        if steps.words and steps.words != tuple(range(self.bytes // _WORD)):
            name = "avx512.permvar.si.512" if wide else "avx2.permd"
            text, type = self._call(name, words, self._cast(text, type, words), steps.words), words
        names = "avx512.permvar.qi.512" if self.at_once else "avx512.pshuf.b.512"
        name = names if wide else "avx2.pshuf.b"
        text = self._call(name, narrow, self._cast(text, type, narrow), steps.bytes)
        return self._cast(text, narrow, words)

    def _call(self, name: str, type: str, text: str, table: Sequence[int]) -> str:
        element = type[:-1].split(" x ")[1]
        literal = ", ".join(f"{element} {entry}" for entry in table)
        return self.writer.intrinsic(
            f"llvm.x86.{name}", type, [f"{type} {text}", f"{type} <{literal}>"]
        )

    def _cast(self, text: str, type: str, to: str) -> str:
        return text if type == to else self.writer.emit(f"bitcast {type} {text} to {to}")
