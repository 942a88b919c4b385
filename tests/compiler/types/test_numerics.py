"""Numerics by name, the algorithms that they admit, and the tolerance that follows from them."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import SettingsError
from compiler.kernels.winograd import TRANSFORMS
from compiler.schedule.schedule import Schedule
from compiler.schedule.steps.block_attention import BlockAttention
from compiler.schedule.steps.pack_layout import PackLayout
from compiler.schedule.steps.winograd import Winograd
from compiler.types.dtypes import DType
from compiler.types.numerics import (
    DEFAULT_NUMERICS,
    NUMERICS,
    STRICT_NUMERICS,
    Algorithm,
    Numerics,
)


def test_numerics_are_found_by_the_names_of_settings() -> None:
    assert list(NUMERICS) == ["default", "strict"]
    assert Numerics.of("strict") is Numerics.of(STRICT_NUMERICS) is STRICT_NUMERICS


def test_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError) as caught:
        Numerics.of("strickt")
    assert str(caught.value) == (
        "no numerics 'strickt'; there are default, strict (did you mean 'strict'?)"
    )


def test_strict_numerics_admit_direct_sums_alone() -> None:
    assert STRICT_NUMERICS.algorithms == {Algorithm.DIRECT}
    assert {Algorithm.winograd(m) for m in TRANSFORMS} < DEFAULT_NUMERICS.algorithms


def test_algorithm_of_a_schedule_follows_from_its_steps() -> None:
    layout = PackLayout("in1", (), (0, 1, 2, 3))
    assert Schedule((layout,)).algorithm == "direct"
    assert Schedule((Winograd(4), layout)).algorithm == "winograd F(4x4)"
    assert Schedule((BlockAttention(64, 8), layout)).algorithm == "direct"
    assert Schedule((BlockAttention(64, 8, True), layout)).algorithm == "online softmax"


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_tolerance_is_of_the_output_and_grows_with_the_root_of_the_length(dtype: DType) -> None:
    assert dtype.epsilon == np.finfo(dtype.numpy).eps
    assert DEFAULT_NUMERICS.tolerance(dtype, 1) == 64 * dtype.epsilon
    assert DEFAULT_NUMERICS.tolerance(dtype, 400) == pytest.approx(20 * 64 * dtype.epsilon)


def test_tolerance_is_that_of_the_storage_where_it_is_coarser() -> None:
    stored = Numerics("stored", frozenset(Algorithm), storage=DType.F32)
    assert stored.tolerance(DType.F64, 1) == stored.tolerance(DType.F32, 1)
