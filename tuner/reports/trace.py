"""Trace: what happened when, as the JSON that Perfetto (ui.perfetto.dev) and Chrome show.

Its lanes are threads of processes to those; a lane holds slices that do not overlap, or lie within
each other. The form: "Trace Event Format", complete events (`X`) and names (`M`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tunefarm.configs.files import write_text

_MICROSECONDS = 1e6


@dataclass(slots=True)
class Trace:
    """Slices of lanes; moments are seconds of one clock, of which `origin` becomes zero.

    Slices may be added from several threads.
    """

    origin: float = 0.0
    _lanes: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    _processes: dict[str, int] = field(default_factory=dict)
    _events: list[dict[str, Any]] = field(default_factory=list)

    def slice(
        self, process: str, lane: str, name: str, began: float, ended: float, **arguments: object
    ) -> None:
        """Add what took from one moment to another, with its description."""
        number, thread = self._place(process, lane)
        begin, end = (
            round(max(0.0, moment - self.origin) * _MICROSECONDS, 3) for moment in (began, ended)
        )
        event: dict[str, Any] = {"ph": "X", "name": name, "pid": number, "tid": thread}
        event |= {"ts": begin, "dur": round(max(0.0, end - begin), 3)}
        if arguments:
            event["args"] = arguments
        self._events.append(event)

    def to_json(self) -> dict[str, Any]:
        """The trace as JSON values: names first, then slices in the order of their beginnings,
        those that hold others before these."""
        names = [
            {"ph": "M", "name": "process_name", "pid": number, "args": {"name": process}}
            for process, number in self._processes.items()
        ]
        for (_, lane), (number, thread) in self._lanes.items():
            place = {"ph": "M", "pid": number, "tid": thread}
            names.append({**place, "name": "thread_name", "args": {"name": lane}})
            names.append({**place, "name": "thread_sort_index", "args": {"sort_index": thread}})
        events = sorted(self._events, key=lambda event: (event["ts"], -event["dur"]))
        return {"displayTimeUnit": "ms", "traceEvents": [*names, *events]}

    def write(self, path: str) -> None:
        """Write the trace as a file, all at once. Raises OSError."""
        write_text(path, json.dumps(self.to_json(), separators=(",", ":")) + "\n")

    def _place(self, process: str, lane: str) -> tuple[int, int]:
        place = self._lanes.get((process, lane))
        if place is None:
            number = self._processes.setdefault(process, len(self._processes) + 1)
            place = self._lanes.setdefault((process, lane), (number, len(self._lanes) + 1))
        return place
