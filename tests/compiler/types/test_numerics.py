"""Numerics by name, the algorithms that they admit, and the tolerance that follows from them."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.kernels.winograd import TRANSFORMS
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.kernel_forms import BlockAttention, Winograd
from tunefarm.compiler.schedule.steps.packing import PackLayout
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import (
    DEFAULT_NUMERICS,
    NUMERICS,
    STRICT_NUMERICS,
    Algorithm,
    Numerics,
    sum_tolerance,
)
from tunefarm.configs.settings import CompileSettings


def test_numerics_are_found_by_the_names_of_settings() -> None:
    names = ["default", "strict", "deterministic", "int8-activations", "bf16", "f16"]
    assert list(NUMERICS) == names
    assert Numerics.of("strict") is Numerics.of(STRICT_NUMERICS) is STRICT_NUMERICS
    assert Numerics.of("fp16") is Numerics.of("f16") is NUMERICS["f16"]


def test_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError) as caught:
        Numerics.of("strickt")
    assert str(caught.value) == (
        "unknown precision 'strickt'; known: default, strict, deterministic, int8-activations, "
        "bf16, fp16 (did you mean 'strict'?)"
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
def test_tolerance_is_of_the_type_and_grows_with_the_root_of_the_length(dtype: DType) -> None:
    assert dtype.epsilon == np.finfo(dtype.numpy).eps
    assert sum_tolerance(dtype, 1) == 64 * dtype.epsilon
    assert sum_tolerance(dtype, 400) == pytest.approx(20 * 64 * dtype.epsilon)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_tolerance_of_what_is_stored_narrow_is_that_of_its_sums(dtype: DType) -> None:
    assert sum_tolerance(dtype, 9) == sum_tolerance(DType.F32, 9)


def test_storage_of_single_contractions_goes_before_that_of_all() -> None:
    apart = Numerics.of("bf16").planned({"head": DType.F32, "stem": DType.I8})
    assert [apart.storage_of(name) for name in ("head", "stem", "body")] == [
        DType.F32,
        DType.I8,
        DType.BF16,
    ]
    assert apart.narrow is DType.BF16
    assert DEFAULT_NUMERICS.narrow is DEFAULT_NUMERICS.planned({"head": DType.F32}).narrow is None


def test_a_model_has_one_narrow_type() -> None:
    with pytest.raises(ValueError, match="same narrow float type"):
        Numerics.of("bf16").planned({"head": DType.F16})


def test_settings_know_the_numerics_that_there_are() -> None:
    names = get_args(CompileSettings.model_fields["numerics"].annotation)
    planned = {"int8", "auto"}  # of single contractions, by what was measured of the model
    assert {Numerics.of(name).name for name in {*names} - planned} == NUMERICS.keys()
