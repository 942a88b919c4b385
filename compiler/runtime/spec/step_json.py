"""Places in memory, what steps are guarded by, loops and dynamic shapes, as JSON values, and
back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunefarm.compiler.runtime.spec.executable_spec import (
    AgainStep,
    Condition,
    CopyStep,
    FunctionStep,
    Location,
    LoopStep,
    Place,
    RowStep,
)
from tunefarm.compiler.types.open_axes import OpenAxes


def location_to_json(location: Location) -> list[Any]:
    """A place as JSON values."""
    offset = [location.offset] if location.offset else []
    return [str(location.place), location.number, *offset]


def location_from_json(data: Sequence[Any]) -> Location:
    """The inverse of `location_to_json`."""
    place, number, *offset = data
    return Location(Place(place), int(number), *map(int, offset))


def optional_to_json(location: Location | None) -> list[Any] | None:
    """A place, or None."""
    return None if location is None else location_to_json(location)


def optional_from_json(data: Sequence[Any] | None) -> Location | None:
    """The inverse of `optional_to_json`."""
    return None if data is None else location_from_json(data)


def guards_to_json(guards: Sequence[Condition]) -> dict[str, Any]:
    """Nothing for a step that always runs."""
    if not guards:
        return {}
    return {"guards": [[location_to_json(guard.place), guard.taken] for guard in guards]}


def guards_from_json(data: Mapping[str, Any]) -> tuple[Condition, ...]:
    """The guards of a step that was `guards_to_json`."""
    return tuple(
        Condition(location_from_json(place), bool(taken)) for place, taken in data.get("guards", ())
    )


def open_sizes_to_json(step: FunctionStep) -> dict[str, Any]:
    """What a function's call knows of dynamic shape; nothing of one without."""
    if not step.axes:
        return {}
    return {
        "axes": step.axes,
        "sizes": optional_to_json(step.sizes),
        "workspace": step.workspace,
    }


def open_sizes_from_json(
    data: Mapping[str, Any],
) -> tuple[tuple[OpenAxes | None, ...], Location | None, int | None]:
    """The inverse of `open_sizes_to_json`."""
    axes = tuple(None if item is None else _axes(item) for item in data.get("axes", ()))
    workspace = data.get("workspace")
    return axes, optional_from_json(data.get("sizes")), workspace and int(workspace)


def _axes(data: Sequence[Any]) -> OpenAxes:
    return tuple(tuple((int(true), int(extent)) for true, extent in axis) for axis in data)


_Json = dict[str, Any]


def loop_to_json(step: LoopStep | AgainStep) -> _Json:
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
