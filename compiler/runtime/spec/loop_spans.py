"""Where the loops of a program begin and end, and how long values live that their steps read."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from tunefarm.compiler.kernels.kernel import KernelProgram, LoopBegin, LoopEnd


@dataclass(frozen=True, slots=True)
class Loops:
    """The first and the last call of each loop, by its number; inner loops before outer ones."""

    spans: Mapping[int, tuple[int, int]]

    @staticmethod
    def of(program: KernelProgram) -> Loops:
        """Those of a program."""
        begins: dict[int, int] = {}
        spans: dict[int, tuple[int, int]] = {}
        for step, call in enumerate(program.calls):
            if isinstance(call, LoopBegin):
                begins[call.loop] = step
            elif isinstance(call, LoopEnd):
                spans[call.loop] = begins[call.loop], step
        return Loops(spans)

    def begin(self, loop: int) -> int:
        """The call at which a loop begins."""
        return self.spans[loop][0]

    def keep_alive(self, made_by: Mapping[str, int], last_used: MutableMapping[str, int]) -> None:
        """Have what was made before a loop and is read in its steps live until its end.

        So do states, which are made where it begins: each step finds them as the last left them.
        """
        for begin, end in self.spans.values():
            for name, first in made_by.items():
                if first <= begin < last_used[name] < end:
                    last_used[name] = end
