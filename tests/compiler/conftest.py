"""What tests of this folder do quickly, since others test it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tunefarm.compiler import pipeline
from tunefarm.compiler.content_cache import ContentCache
from tunefarm.compiler.kernel_stages import KernelStages
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.stages import Stages

_OF_RESULTS = (
    "frontend/",
    "graph/",
    "session/",
    "test_cache_room.py",
    "test_causal_prompts.py",
    "test_drawn_quantised.py",
    "test_generation.py",
)
"""Where models are built for what they compute: how kernels become code is tested elsewhere."""


@pytest.fixture(scope="session")
def kernels_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> ObjectCache:
    """The code of kernels that a test of this run has built, for all of its processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the one that the test processes have in common
    return ObjectCache(ContentCache(folder / "kernels"))


@pytest.fixture(autouse=True, scope="module")
def builds_with_kernels_of_the_tests(
    request: pytest.FixtureRequest, kernels_of_the_tests: ObjectCache
) -> Iterator[None]:
    """Models that are built without a cache of their own take kernels that were compiled before."""
    place = request.path.relative_to(Path(__file__).parent).as_posix()
    if not place.startswith(_OF_RESULTS):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "KernelStages", partial(_stages, kernels_of_the_tests))
        yield


def _stages(
    known: ObjectCache,
    stages: Stages,
    spaces: SpaceCache,
    allowance: ResourceBudget,
    cache: ObjectCache | None,
) -> KernelStages:
    """The stages of kernels of a build, with the cache of the tests where it has none."""
    return KernelStages(stages, spaces, allowance, known if cache is None else cache)
