"""NameScope: the values that nodes of one graph (or function body) can name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from onnx import SparseTensorProto, TensorProto

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.external_data import ExternalData
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.structured_values import Entity
from tunefarm.compiler.frontend.tensors import read_sparse, read_tensor


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
        self._initializers: dict[str, TensorProto] = {}
        self._poisoned: set[str] = set()

    def add_initializers(self, tensors: Iterable[TensorProto]) -> None:
        """Declare initializers. Raises ImportModelError when a name repeats."""
        for tensor in tensors:
            if not tensor.name:
                raise ImportModelError("an initializer has no name")
            if tensor.name in self._initializers:
                raise ImportModelError(f"the initializer {tensor.name!r} is there twice")
            self._initializers[tensor.name] = tensor

    def add_sparse(self, tensors: Iterable[SparseTensorProto]) -> None:
        """Define sparse initializers, as arrays. Raises ImportModelError for a damaged one."""
        for tensor in tensors:
            name, allowance = tensor.values.name, self._builder.allowance
            array = read_sparse(tensor, f"initializer {name!r}", self._external, allowance)
            value = self._builder.constant(array)
            self.define(name, value)
            self._builder.name_value(value, name)

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
        tensor = self._initializers[name]
        value = self._builder.constant(
            read_tensor(tensor, f"initializer {name!r}", self._external, self._builder.allowance)
        )
        self._builder.name_value(value, name)
        self._values[name] = value
        return value

    def _names(self) -> list[str]:
        return [*self._values, *self._initializers]
