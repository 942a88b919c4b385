"""Object-code cache: code that was made before, by kernel, schedule, target and compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunefarm.compiler.content_cache import ContentCache, cache_key
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.llvm.compile_kernel import CompiledKernel, constant_layouts
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen

_TEXT = {"of": "text"}
"""Facts of the code that was made from text: there is nothing more to know."""


class ObjectCache:
    """Knows what was compiled before. Used by several threads at once."""

    def __init__(self, cache: ContentCache) -> None:
        self.hits = 0
        self.misses = 0
        self.cache = cache

    def entry(
        self,
        kernel: FusedKernel,
        schedule: Schedule,
        target: Target,
        symbol: str,
        fixed_rounding: bool = False,
    ) -> KernelEntry:
        """Where the code is kept that `emit_loops` makes of these."""
        kind, steps = "kernel of fixed rounding" if fixed_rounding else "kernel", schedule.to_json()
        key = cache_key(kind, kernel_to_json(kernel), steps, target.to_json(), symbol)
        return KernelEntry(self, key, schedule, symbol)

    def object_code(self, text: str, target: Target) -> bytes:
        """`tunefarm.compiler.llvm.machine.object_code`, or what it gave before."""
        key = cache_key("text", text, target.to_json())
        found = self.find(key, lambda facts: facts == _TEXT)
        if found is not None:
            return found[1]
        code = object_code(text, target)
        self.cache.add(key, _TEXT, code)
        return code

    def find(
        self, key: str, is_right: Callable[[Any], bool]
    ) -> tuple[dict[str, Any], bytes] | None:
        """An entry whose facts are of the right kind."""
        found = self.cache.find(key)
        if found is None or not is_right(found[0]):
            self.misses += 1
            return None
        self.hits += 1
        return found


@frozen
class KernelEntry:
    """The place in a cache of one kernel's code."""

    cache: ObjectCache
    key: str
    schedule: Schedule
    symbol: str

    def find(self) -> CompiledKernel | None:
        """The code, if it was kept."""
        found = self.cache.find(self.key, _is_kernel)
        if found is None:
            return None
        facts, code = found
        size, parallel = facts["workspace_bytes"], facts["parallel"]
        layouts, algorithm = constant_layouts(self.schedule), self.schedule.algorithm
        why = facts["not_vectorised"]
        return CompiledKernel(self.symbol, code, size, layouts, parallel, algorithm, why)

    def keep(self, made: CompiledKernel) -> None:
        """Keep the code."""
        facts = {
            "workspace_bytes": made.workspace_bytes,
            "parallel": made.parallel,
            "not_vectorised": made.not_vectorised,
        }
        self.cache.cache.add(self.key, facts, made.object_code)


def _is_kernel(facts: Any) -> bool:
    """Whether these are the facts of a compiled kernel."""
    names = {"workspace_bytes", "parallel", "not_vectorised"}
    if not isinstance(facts, dict) or facts.keys() != names:
        return False
    size, why = facts["workspace_bytes"], facts["not_vectorised"]
    is_size = type(size) is int and size >= 0
    return is_size and isinstance(facts["parallel"], bool) and isinstance(why, str)
