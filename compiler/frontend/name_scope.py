"""NameScope: the values that nodes of one graph (or function body) can name."""

from __future__ import annotations

import difflib
from collections.abc import Set

from onnx import GraphProto

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.external_data import ExternalData
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.structured_values import Entity
from tunefarm.compiler.frontend.tensors import Initializer, initializers, read_initializer


class NameScope:
    """Names and their values; a subgraph's scope has the enclosing graph's as its parent.

    Initializers are decoded when they are first read. `poison` marks values that could not be
    computed because of an error that is already recorded.
    """

    def __init__(
        self, builder: GraphBuilder, external: ExternalData | None, parent: NameScope | None = None
    ) -> None:
        self._builder = builder
        self._external = external
        self._parent = parent
        self._values: dict[str, Entity | None] = {}
        self._initializers: dict[str, Initializer] = {}
        self._poisoned: set[str] = set()

    def add_initializers(self, graph: GraphProto, inputs: Set[str] = frozenset()) -> None:
        """Declare a graph's initializers but for those that are `inputs`.

        Raises ImportModelError when a name repeats.
        """
        found = initializers(graph)
        self._initializers = {name: found[name] for name in found if name not in inputs}

    def define(self, name: str, value: Entity | None) -> None:
        """Give a name its value (None: an absent optional). Raises ImportModelError if taken."""
        if name in self._values or name in self._poisoned or name in self._initializers:
            raise ImportModelError(f"the value {name!r} is computed twice")
        self._values[name] = value

    def poison(self, name: str) -> None:
        """Mark a name whose value is unknown because of an earlier error."""
        if name not in self._values:
            self._poisoned.add(name)

    def is_poisoned(self, name: str) -> bool:
        """Whether the value is one that could not be computed; inner scopes see those of outer
        ones."""
        if name in self._poisoned:
            return True
        if name in self._values or name in self._initializers:
            return False
        return self._parent is not None and self._parent.is_poisoned(name)

    def knows(self, name: str) -> bool:
        """Whether a name has a value here (an absent optional has none)."""
        if self._values.get(name) is not None or name in self._initializers:
            return True
        return self._parent is not None and self._parent.knows(name)

    def lookup(self, name: str) -> Entity | None:
        """The value of a name; None for "" and absent optionals.

        Raises ImportModelError when nothing before this point computes it.
        """
        if not name:
            return None
        scope: NameScope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            if name in scope._initializers:
                return scope._decode(name)
            scope = scope._parent
        nearest = difflib.get_close_matches(name, self._names(), n=1)
        raise ImportModelError(
            f"the value {name!r} is used before it is computed, or never is",
            hint=f"the nearest known value is {nearest[0]!r}" if nearest else "",
        )

    def _decode(self, name: str) -> Value:
        tensor, allowance = self._initializers[name], self._builder.allowance
        value = self._builder.constant(read_initializer(tensor, name, self._external, allowance))
        self._builder.name_value(value, name)
        self._values[name] = value
        return value

    def _names(self) -> list[str]:
        return [*self._values, *self._initializers]
