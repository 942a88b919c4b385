"""What must hold of every trace: Perfetto draws a lane's slices as a stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ROUNDING = 2e-3  # microseconds


def slices(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def lanes(trace: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The slices of each lane, by its name; every lane and its process must have one."""
    events = trace["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for event in slices(trace):
        lane = f"{processes[event['pid']]}/{threads[event['pid'], event['tid']]}"
        found.setdefault(lane, []).append(event)
    return found


def assert_nested(trace: Mapping[str, Any]) -> None:
    """Within each lane a slice lies within another one or beside it, and none has a negative
    length."""
    for lane, events in lanes(trace).items():
        ends: list[float] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            begin, end = event["ts"], event["ts"] + event["dur"]
            assert begin >= 0 and event["dur"] >= 0, (lane, event)
            while ends and ends[-1] <= begin + _ROUNDING:
                ends.pop()
            assert not ends or end <= ends[-1] + _ROUNDING, (lane, event)
            ends.append(end)
