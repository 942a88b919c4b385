"""Calibration data of several shapes: what is cut into runs of a model with open sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.types.dims import Dims
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import AxisSource, Signature, SizedPort
from tunefarm.compiler.types.sizes import Dimension, Symbol
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.tuner.calibration.data import SampleForm, read_samples


def _form(several: bool = False) -> SampleForm:
    """x [b, s, 2] and m [b, s], of b from 1 to 4 and s from 2 to 6."""
    b, s = Symbol("b", 1, 4), Symbol("s", 2, 6)
    rows: Dimension = Symbol.of("b", 1, 4)
    words: Dimension = Symbol.of("s", 2, 6)
    dims: Dims = (((rows, 4),), ((words, 6),))
    ports = (
        SizedPort("x", DType.F32, (rows, words, 2), (*dims, ((2, 2),))),
        SizedPort("m", DType.I64, (rows, words), dims),
    )
    signature = Signature(ports, (), (AxisSource(b, "x", 0), AxisSource(s, "x", 1)), ())
    types = {"x": TensorType(DType.F32, (4, 6, 2)), "m": TensorType(DType.I64, (4, 6))}
    return SampleForm(types, signature, several)


def _run(*shape: int) -> dict[str, Array]:
    return {"x": np.zeros((*shape, 2), np.float32), "m": np.zeros(shape, np.int64)}


def _shapes(path: Path, form: SampleForm) -> list[tuple[int, ...]]:
    runs = list(read_samples(str(path), form))
    assert all(run["x"].shape[:-1] == run["m"].shape for run in runs)
    return [run["m"].shape for run in runs]


def _save(path: Path, arrays: dict[str, Array]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_each_file_of_a_folder_has_sizes_of_its_own(tmp_path: Path) -> None:
    for number, shape in enumerate([(1, 2), (4, 6), (2, 3)]):
        _save(tmp_path / f"{number}.npz", _run(*shape))
    assert _shapes(tmp_path, _form()) == [(1, 2), (4, 6), (2, 3)]


def test_runs_of_one_file_are_numbered(tmp_path: Path) -> None:
    shapes = {2: (2, 3), 10: (1, 6), 0: (4, 2)}
    arrays = {f"{n}/{name}": a for n, shape in shapes.items() for name, a in _run(*shape).items()}
    assert _shapes(_save(tmp_path / "a.npz", arrays), _form()) == [(4, 2), (2, 3), (1, 6)]


def test_a_further_axis_counts_runs(tmp_path: Path) -> None:
    assert _shapes(_save(tmp_path / "a.npz", _run(3, 2, 5)), _form()) == [(2, 5)] * 3


def test_a_batch_that_is_too_long_is_several(tmp_path: Path) -> None:
    assert _shapes(_save(tmp_path / "a.npz", _run(10, 5)), _form()) == [(4, 5), (4, 5), (2, 5)]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        (_run(2, 7), "s = 7 is out of its bounds, 2 to 6"),
        ({**_run(2, 3), "m": np.zeros((2, 4), np.int64)}, r"m has the shape \[2, 4\]"),
        ({**_run(2, 3), "m": np.zeros(2, np.int64)}, r"the model's input is i64\[b:1..4, s:2..6\]"),
        ({**_run(2, 3), "x": np.zeros((2, 3, 5), np.float32)}, r"x has the shape \[2, 3, 5\]"),
    ],
)
def test_shapes_that_are_none_of_the_models_are_refused(
    arrays: dict[str, Array], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(TunefarmError, match=reason) as caught:
        read_samples(str(_save(tmp_path / "a.npz", arrays)), _form())
    assert str(tmp_path / "a.npz") in str(caught.value)


def test_what_belongs_to_another_program_is_passed_over(tmp_path: Path) -> None:
    for number, shape in enumerate([(1, 2), (4, 60), (2, 3)]):
        _save(tmp_path / f"{number}.npz", _run(*shape))
    assert _shapes(tmp_path, _form(several=True)) == [(1, 2), (2, 3)]
    with pytest.raises(TunefarmError, match=r"no sample has the sizes .* m i64\[b:1..4, s:2..6\]"):
        read_samples(str(tmp_path / "1.npz"), _form(several=True))
