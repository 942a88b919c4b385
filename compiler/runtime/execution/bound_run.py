"""BoundRun: a run whose arrays are given once, for callers that use them again and again."""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.runtime.spec.ports import AnyArray


class BoundRun:
    """Runs a model from and to the same arrays; what is in the inputs may change between runs.

    `outputs` are the arrays that it writes, by name. One call at a time.
    """

    __slots__ = ("_alive", "_call", "outputs")

    def __init__(
        self, call: Callable[[], None], outputs: dict[str, AnyArray], alive: object
    ) -> None:
        """`alive` is what `call` reads, writes and consists of."""
        self._call = call
        self.outputs = outputs
        self._alive = alive

    def run(self) -> None:
        """Run the model. Releases the interpreter lock while the kernels run."""
        self._call()
