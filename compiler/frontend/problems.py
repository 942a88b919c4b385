"""Problems: what is wrong with a model, collected so that one error can tell it all."""

from __future__ import annotations

from tunefarm.compiler.errors import ImportModelError, UnsupportedOperatorError


class Problems:
    """Everything unsupported in a model, and the first other error."""

    def __init__(self) -> None:
        self._unsupported: dict[tuple[str, str], list[str]] = {}
        self._first: ImportModelError | None = None

    def unsupported(self, operator: str, node: str, reason: str = "") -> None:
        """Record that a node (by name) cannot be converted, because of `reason` if not at all."""
        names = self._unsupported.setdefault((operator, reason), [])
        if node not in names:
            names.append(node)

    def error(self, error: ImportModelError) -> None:
        """Record an error of another kind; only the first one is reported."""
        if self._first is None:
            self._first = error

    def raise_if_any(self) -> None:
        """Raise the one error that names every unsupported operator, else the first other one."""
        if self._unsupported:
            raise UnsupportedOperatorError(self._message())
        if self._first is not None:
            raise self._first

    def _message(self) -> str:
        operators = sorted({operator for operator, _ in self._unsupported})
        if len(operators) == 1:
            head = "the model uses an operator that is not supported"
        else:
            head = f"the model uses {len(operators)} operators that are not supported"
        parts = []
        for (operator, reason), nodes in sorted(self._unsupported.items()):
            names = ", ".join(repr(node) for node in nodes)
            plural = "node" if len(nodes) == 1 else "nodes"
            parts.append(f"{operator} ({plural} {names})" + (f": {reason}" if reason else ""))
        return f"{head}: {'; '.join(parts)}"
