"""Takes back what was added to a graph that is being built, where it led nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunefarm.compiler.frontend.graph_builder import GraphBuilder

_COLLECTIONS = (list, dict, set)


def checkpoint(graph: GraphBuilder) -> Callable[[], None]:
    """A function that makes the graph again what it is now; numbers of names are not used twice."""
    parts: tuple[object, ...] = (graph, graph.padded, graph.run_time)
    kept = [(part, _collections(part)) for part in parts]
    was_padded = graph.is_padded

    def restore() -> None:
        for part, collections in kept:
            for name, collection in collections.items():
                setattr(part, name, collection.copy())
        graph.is_padded = was_padded

    return restore


def _collections(part: object) -> dict[str, Any]:
    """Copies of the collections that an object keeps what it knows in."""
    return {
        name: value.copy() for name, value in vars(part).items() if isinstance(value, _COLLECTIONS)
    }
