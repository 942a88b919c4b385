"""Loops of small kernels that run in parallel."""

from __future__ import annotations

import pytest

from tunefarm.compiler.schedule.sketches import operand_copies, parallel_choices, tiled_reduction


@pytest.fixture
def small_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of any size run in parallel."""
    monkeypatch.setattr(tiled_reduction, "PARALLEL_WORK", 1)
    for module in (operand_copies, parallel_choices):
        monkeypatch.setattr(module, "PARALLEL_ELEMENTS", 1)
