"""What tests of this folder do quickly, since others test it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.known_kernels import known_kernels

_OF_RESULTS = (
    "frontend/",
    "graph/",
    "plan/",
    "runtime/",
    "session/",
    "strings/",
    "test_cache_room.py",
    "test_causal_prompts.py",
    "test_drawn_quantised.py",
    "test_foreign_functions.py",
    "test_generation.py",
    "test_limits.py",
    "test_texts.py",
)
"""Where models are built for what they compute: how kernels become code is tested elsewhere."""


@pytest.fixture(autouse=True, scope="module")
def builds_with_known_kernels(
    request: pytest.FixtureRequest, folder_of_the_run: Path
) -> Iterator[None]:
    """Models are built of kernels that were compiled before."""
    place = request.path.relative_to(Path(__file__).parent).as_posix()
    if not place.startswith(_OF_RESULTS):
        yield
        return
    with known_kernels(folder_of_the_run):
        yield
