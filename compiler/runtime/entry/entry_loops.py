"""Loops of the entry function: how often, which row, and what the next round begins with.

    limit = min(limit, most); round = 0; on = first
    head:   round < limit and on ? body : behind
    body:   index = round; ...steps...
            rows[round] = ...; on = again; states = following; round += 1; to head
    behind: count = round; going = on and round < limit as it was asked for

Round and condition stand on the stack: LLVM's code keeps no more than these two there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.compiler.runtime.entry.ir_body import IrBody
from tunefarm.compiler.runtime.spec.executable_spec import (
    AgainStep,
    CopyStep,
    Location,
    LoopStep,
    RowStep,
    RunStep,
)


class EntryLoops:
    """Writes the loops of one function into its body."""

    def __init__(
        self, body: IrBody, pointer: Callable[[Location], str], steps: Sequence[RunStep]
    ) -> None:
        """`pointer` appends what computes a location's address, and gives its name."""
        self._body, self._pointer = body, pointer
        self._asked: dict[int, str] = {}  # the limit of each loop that has begun, as it was given
        self._limits: dict[int, str] = {}  # the same, no more than there is memory for
        for step in steps:
            if isinstance(step, LoopStep):
                body.line(f"%round{step.loop} = alloca i64")
                body.line(f"%on{step.loop} = alloca i1")

    def begin(self, step: LoopStep) -> None:
        """The copies before a loop, its head, and the beginning of its body."""
        body, number, most = self._body, step.loop, str(step.most)
        for copy in step.initial:
            self.copy(copy)
        asked = limit = most
        if step.limit is not None:
            asked = body.value(f"load i64, ptr {self._pointer(step.limit)}")
            less = body.value(f"icmp slt i64 {asked}, {most}")
            limit = body.value(f"select i1 {less}, i64 {asked}, i64 {most}")
        self._asked[number], self._limits[number] = asked, limit
        on = "true" if step.first is None else self._true(step.first)
        body.line(f"store i64 0, ptr %round{number}")
        body.line(f"store i1 {on}, ptr %on{number}")
        body.line(f"br label %loop{number}.head")
        body.line(f"loop{number}.head:")
        count = body.value(f"load i64, ptr %round{number}")
        within = body.value(f"icmp slt i64 {count}, {limit}")
        goes_on = body.value(f"load i1, ptr %on{number}")
        more = body.value(f"and i1 {within}, {goes_on}")
        body.line(f"br i1 {more}, label %loop{number}.body, label %loop{number}.behind")
        body.line(f"loop{number}.body:")
        if step.index is not None:
            body.line(f"store i64 {count}, ptr {self._pointer(step.index)}")

    def end(self, step: AgainStep) -> None:
        """The end of a loop's body, and what is known behind the loop."""
        body, number = self._body, step.loop
        count = body.value(f"load i64, ptr %round{number}")
        for row in step.rows:
            self._row(row, count, number)
        if step.again is not None:
            body.line(f"store i1 {self._true(step.again)}, ptr %on{number}")
        for copy in step.following:
            self.copy(copy)
        following = body.value(f"add i64 {count}, 1")
        body.line(f"store i64 {following}, ptr %round{number}")
        body.line(f"br label %loop{number}.head")
        body.line(f"loop{number}.behind:")
        ran = body.value(f"load i64, ptr %round{number}")
        if step.count is not None:
            body.line(f"store i64 {ran}, ptr {self._pointer(step.count)}")
        if step.going is not None:
            more = body.value(f"icmp slt i64 {ran}, {self._asked[number]}")
            on = body.value(f"load i1, ptr %on{number}")
            going = body.value(f"and i1 {more}, {on}")
            byte = body.value(f"zext i1 {going} to i8")
            body.line(f"store i8 {byte}, ptr {self._pointer(step.going)}")

    def copy(self, step: CopyStep) -> None:
        """Copy memory from one place to another."""
        self._move(self._pointer(step.source), self._pointer(step.destination), step.bytes)

    def _row(self, step: RowStep, count: str, number: int) -> None:
        body, row = self._body, count
        if step.backward:
            last = body.value(f"sub i64 {self._limits[number]}, 1")
            row = body.value(f"sub i64 {last}, {count}")
        offset = body.value(f"mul i64 {row}, {step.bytes}")
        source, first = self._pointer(step.source), self._pointer(step.destination)
        destination = body.value(f"getelementptr i8, ptr {first}, i64 {offset}")
        self._move(source, destination, step.bytes)

    def _move(self, source: str, destination: str, bytes: int) -> None:
        self._body.line(
            "call void @llvm.memcpy.p0.p0.i64"
            f"(ptr {destination}, ptr {source}, i64 {bytes}, i1 false)"
        )

    def _true(self, place: Location) -> str:
        """Whether the bool at a place is true."""
        byte = self._body.value(f"load i8, ptr {self._pointer(place)}")
        return self._body.value(f"icmp ne i8 {byte}, 0")
