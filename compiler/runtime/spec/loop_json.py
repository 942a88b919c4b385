"""The steps where loops begin and end as JSON values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunefarm.compiler.runtime.spec.executable_spec import AgainStep, CopyStep, LoopStep, RowStep
from tunefarm.compiler.runtime.spec.step_json import (
    guards_from_json,
    guards_to_json,
    location_from_json,
    location_to_json,
    optional_from_json,
    optional_to_json,
)

Json = dict[str, Any]


def loop_to_json(step: LoopStep | AgainStep) -> Json:
    """A step as JSON values."""
    if isinstance(step, LoopStep):
        return {
            "loop": step.loop,
            "limit": optional_to_json(step.limit),
            "first": optional_to_json(step.first),
            "most": step.most,
            "index": optional_to_json(step.index),
            "initial": [_copy_to_json(copy) for copy in step.initial],
            **guards_to_json(step.guards),
        }
    return {
        "loop": step.loop,
        "again": optional_to_json(step.again),
        "rows": [[*_copy_to_json(row), row.backward] for row in step.rows],
        "following": [_copy_to_json(copy) for copy in step.following],
        "count": optional_to_json(step.count),
        "going": optional_to_json(step.going),
    }


def loop_from_json(data: Mapping[str, Any]) -> LoopStep | AgainStep:
    """The inverse of `loop_to_json`."""
    if "most" in data:
        return LoopStep(
            int(data["loop"]),
            optional_from_json(data["limit"]),
            optional_from_json(data["first"]),
            int(data["most"]),
            optional_from_json(data["index"]),
            tuple(map(_copy_from_json, data["initial"])),
            guards_from_json(data),
        )
    return AgainStep(
        int(data["loop"]),
        optional_from_json(data["again"]),
        tuple(map(_row_from_json, data["rows"])),
        tuple(map(_copy_from_json, data["following"])),
        optional_from_json(data["count"]),
        optional_from_json(data["going"]),
    )


def _copy_to_json(copy: CopyStep | RowStep) -> list[Any]:
    return [location_to_json(copy.source), location_to_json(copy.destination), copy.bytes]


def _copy_from_json(data: Any) -> CopyStep:
    source, destination, bytes = data
    return CopyStep(location_from_json(source), location_from_json(destination), int(bytes))


def _row_from_json(data: Any) -> RowStep:
    source, destination, bytes, backward = data
    places = location_from_json(source), location_from_json(destination)
    return RowStep(*places, int(bytes), bool(backward))
