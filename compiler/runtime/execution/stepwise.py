"""Runs the steps of a model one by one, each as a call, loops included."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.compiler.runtime.execution.frame import Frame
from tunefarm.compiler.runtime.spec.executable_spec import (
    AgainStep,
    CopyStep,
    Location,
    LoopStep,
    RunStep,
)

# A step ready to be made: a function and its arguments.
StepCall: TypeAlias = tuple[Callable[..., object], tuple[object, ...]]


@dataclass(slots=True)
class StepwiseLoop:
    """One loop while its steps are made one by one."""

    begin: LoopStep
    end: AgainStep
    frame: Frame
    round: int = 0
    limit: int = 0
    asked: int = 0
    on: bool = True

    def start(self) -> None:
        """What comes before the first round; nothing where the loop is left out."""
        self.limit = 0
        if not all(self._flag(guard.place) == guard.taken for guard in self.begin.guards):
            return
        self.copy(self.begin.initial)
        limit, first = self.begin.limit, self.begin.first
        self.asked = self.begin.most if limit is None else self._integer(limit).value
        self.limit = min(self.asked, self.begin.most)
        self.round, self.on = 0, first is None or self._flag(first)
        self._next()

    def finish(self) -> None:
        """What comes behind each round."""
        for row in self.end.rows:
            number = self.limit - 1 - self.round if row.backward else self.round
            source, first = self.frame.address(row.source), self.frame.address(row.destination)
            ctypes.memmove(first + number * row.bytes, source, row.bytes)
        self.on = self.end.again is None or self._flag(self.end.again)
        self.copy(self.end.following)
        self.round += 1
        self._next()

    @property
    def goes_on(self) -> bool:
        """Whether there is one more round."""
        return self.on and self.round < self.limit

    def _next(self) -> None:
        """Say which round begins, or what is known behind the last one."""
        if self.goes_on:
            if self.begin.index is not None:
                self._integer(self.begin.index).value = self.round
            return
        if self.end.count is not None:
            self._integer(self.end.count).value = self.round
        if self.end.going is not None:
            going = self.on and self.round < self.asked
            ctypes.c_uint8.from_address(self.frame.address(self.end.going)).value = going

    def copy(self, copies: Sequence[CopyStep]) -> None:
        """Copy memory from place to place."""
        for item in copies:
            places = self.frame.address(item.destination), self.frame.address(item.source)
            ctypes.memmove(*places, item.bytes)

    def _integer(self, place: Location) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.frame.address(place))

    def _flag(self, place: Location) -> bool:
        return bool(ctypes.c_uint8.from_address(self.frame.address(place)).value)


@dataclass(slots=True)
class Stepwise:
    """The loops of a program, and which step follows which."""

    loops: dict[int, StepwiseLoop] = field(default_factory=dict)  # by both of its steps
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)  # of a loop by both, too

    @staticmethod
    def of(steps: Sequence[RunStep], frame: Frame) -> Stepwise:
        """Those of the steps of a program."""
        found = Stepwise()
        begins = {step.loop: i for i, step in enumerate(steps) if isinstance(step, LoopStep)}
        for last, end in enumerate(steps):
            if isinstance(end, AgainStep):
                first = begins[end.loop]
                begin = steps[first]
                assert isinstance(begin, LoopStep)
                loop = StepwiseLoop(begin, end, frame)
                found.loops |= {first: loop, last: loop}
                found.bounds |= {first: (first, last), last: (first, last)}
        return found

    def call(self, number: int) -> StepCall:
        """The call that a loop's own step is."""
        loop = self.loops[number]
        return (loop.start if self.bounds[number][0] == number else loop.finish), ()

    def following(self, number: int) -> int:
        """The number of the step after this one."""
        if number not in self.bounds:
            return number + 1
        first, last = self.bounds[number]
        loop = self.loops[number]
        return first + 1 if loop.goes_on else last + 1
