"""The code of kernels that a test of this run has built, where builds are not about code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tunefarm.compiler import pipeline
from tunefarm.compiler.content_cache import ContentCache
from tunefarm.compiler.kernel_stages import KernelStages
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.stages import Stages


class _Both(ContentCache):
    """A build's own cache, which the tests' one fills with what a build looks for in it."""

    def __init__(self, own: ContentCache, known: ContentCache) -> None:
        super().__init__(own.folder, own.most_bytes)
        self._known = known

    def find(self, key: str) -> tuple[Any, bytes] | None:
        found = super().find(key)
        if found is None and (found := self._known.find(key)) is not None:
            super().add(key, *found)
        return found

    def add(self, key: str, facts: Any, data: bytes = b"") -> None:
        super().add(key, facts, data)
        self._known.add(key, facts, data)


@contextmanager
def known_kernels(folder: Path) -> Iterator[None]:
    """Within the context builds take kernels from `folder`, which all processes of a run share."""
    with pytest.MonkeyPatch.context() as patch:
        known = ContentCache(folder / "kernels")
        patch.setattr(pipeline, "KernelStages", partial(_stages, known))
        yield


def _stages(
    known: ContentCache,
    stages: Stages,
    spaces: SpaceCache,
    allowance: ResourceBudget,
    cache: ObjectCache | None,
) -> KernelStages:
    """The stages of kernels of a build."""
    if cache is None:
        cache = ObjectCache(known)
    elif not isinstance(cache.cache, _Both):
        cache.cache = _Both(cache.cache, known)
    return KernelStages(stages, spaces, allowance, cache)
