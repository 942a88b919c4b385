"""The rules of the steps where loops begin and end."""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.runtime.spec.executable_spec import AgainStep, Location, LoopStep

_INTEGER_BYTES = 8


class LoopRules:
    """Goes through the steps in order; `open` are the loops that have not ended yet."""

    def __init__(self, room: Callable[[Location], int | None]) -> None:
        """`room` gives the bytes that there are behind a location, None if it is nowhere."""
        self._room = room
        self._numbers: set[int] = set()
        self.open: list[LoopStep] = []

    def problem(self, step: LoopStep | AgainStep) -> str:
        """Why a step is wrong, or nothing."""
        if isinstance(step, AgainStep):
            return self._end_problem(step)
        if step.loop in self._numbers:
            return "there are two such loops"
        self._numbers.add(step.loop)
        self.open.append(step)
        if step.most < 1:
            return f"it has at most {step.most} rounds"
        asked = [guard.place for guard in step.guards]
        return self._misses([step.limit, step.index], _INTEGER_BYTES) or (
            self._misses([step.first, *asked], 1)
            or next(
                filter(
                    None,
                    (self._copy_problem(c.source, c.destination, c.bytes) for c in step.initial),
                ),
                "",
            )
        )

    def _end_problem(self, step: AgainStep) -> str:
        if not self.open or self.open[-1].loop != step.loop:
            return "no such loop has begun"
        begin = self.open.pop()
        for row in step.rows:
            problem = self._copy_problem(row.source, row.destination, row.bytes)
            room = self._room(row.destination)
            if problem or room is None or room < begin.most * row.bytes:
                return problem or f"{row.destination} has no {begin.most} rows"
            if row.backward and begin.limit is None and step.again is not None:
                return f"the last row of {row.destination} is not known before the end"
        return self._misses([step.again, step.going], 1) or (
            self._misses([step.count], _INTEGER_BYTES)
            or next(
                filter(
                    None,
                    (self._copy_problem(c.source, c.destination, c.bytes) for c in step.following),
                ),
                "",
            )
        )

    def _copy_problem(self, source: Location, destination: Location, bytes: int) -> str:
        return self._misses([source, destination], bytes) if bytes >= 0 else "it copies nothing"

    def _misses(self, locations: list[Location | None], bytes: int) -> str:
        """Which location has not so many bytes, or nothing."""
        for location in locations:
            room = None if location is None else self._room(location)
            if location is not None and (room is None or room < bytes):
                return f"{location} has no {bytes} bytes"
        return ""
