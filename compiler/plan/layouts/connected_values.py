"""Values that belong together because each of them is tied to another one of them (union-find)."""

from __future__ import annotations

from collections.abc import Iterable


def connected_values(
    values: Iterable[str], ties: Iterable[tuple[str, str]]
) -> list[tuple[str, ...]]:
    """The values in groups that ties connect, in their order, groups by their first value.

    Both values of a tie are among the `values`.
    """
    parent = {name: name for name in values}

    def find(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for one, other in ties:
        parent[find(one)] = find(other)
    groups: dict[str, list[str]] = {}
    for name in parent:
        groups.setdefault(find(name), []).append(name)
    return [tuple(group) for group in groups.values()]
