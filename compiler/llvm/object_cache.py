"""Object-code cache: code that was made before, by kernel, schedule, target and compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from compiler.content_cache import ContentCache, cache_key
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.serialize import kernel_to_json
from compiler.llvm.compile_kernel import CompiledKernel, compile_kernel, constant_layouts
from compiler.llvm.machine import object_code
from compiler.schedule.steps import Schedule
from compiler.target import Target

_Parts: TypeAlias = tuple[dict[str, Any], bytes]


class ObjectCache:
    """Compiles what is not in the cache yet. Used by several threads at once."""

    def __init__(self, cache: ContentCache) -> None:
        self.hits = 0
        self.misses = 0
        self.cache = cache

    def compile_kernel(
        self, kernel: FusedKernel, schedule: Schedule, target: Target, symbol: str
    ) -> CompiledKernel:
        """`compiler.llvm.compile_kernel.compile_kernel`, or what it gave before."""
        steps = schedule.to_json()
        key = cache_key("kernel", kernel_to_json(kernel), steps, target.to_json(), symbol)

        def make() -> _Parts:
            code = compile_kernel(kernel, schedule, target, symbol)
            facts = {"workspace_bytes": code.workspace_bytes, "parallel": code.parallel}
            return facts, code.object_code

        facts, code = self._found_or_made(key, make)
        layouts = constant_layouts(schedule)
        return CompiledKernel(symbol, code, facts["workspace_bytes"], layouts, facts["parallel"])

    def object_code(self, text: str, target: Target) -> bytes:
        """`compiler.llvm.machine.object_code`, or what it gave before."""
        key = cache_key("text", text, target.to_json())
        return self._found_or_made(key, lambda: ({}, object_code(text, target)))[1]

    def _found_or_made(self, key: str, make: Callable[[], _Parts]) -> _Parts:
        found = self.cache.find(key)
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        made = make()
        self.cache.add(key, *made)
        return made
