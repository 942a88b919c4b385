"""Calibration data: what is read as samples, and the line for what is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.signature import AxisSource, Signature, SizedPort, fixed_signature
from tunefarm.compiler.types.sizes import Dimension, Symbol
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.tuner.calibration.data import SampleForm, Samples, Split, read_samples

FORM = SampleForm(
    fixed_signature([("x", TensorType(DType.F32, (2, 3))), ("n", TensorType(DType.I64, ()))], ())
)


def save(path: Path, **arrays: Array) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def whole(samples: Samples) -> list[tuple[list[float], int]]:
    return [(np.asarray(run["x"]).ravel().tolist(), int(run["n"])) for run in samples]


def test_an_array_of_the_inputs_shape_is_one_sample(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    file = save(tmp_path / "a.npz", x=x, n=np.array(4))
    samples = read_samples(str(file), FORM)
    assert whole(samples) == [([0, 1, 2, 3, 4, 5], 4)]


@pytest.mark.parametrize("shape", [(3, 2, 3), (6, 3)])
def test_a_further_or_longer_first_axis_counts_samples(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    x = np.arange(18, dtype=np.float32).reshape(shape)
    file = save(tmp_path / "a.npz", x=x, n=np.array([7, 8, 9]))
    found = whole(read_samples(str(file), FORM))
    assert [number for _, number in found] == [7, 8, 9]
    assert [row[0] for row, _ in found] == [0, 6, 12]


def test_files_of_a_folder_follow_each_other_by_name(tmp_path: Path) -> None:
    x = np.zeros((2, 3), np.float32)
    for name, number in (("b", 2), ("a", 1)):
        save(tmp_path / f"{name}.npz", x=x, n=np.array(number))
    samples = read_samples(str(tmp_path), FORM)
    assert [number for _, number in whole(samples)] == [1, 2]
    assert [number for _, number in whole(samples.part([1]))] == [2]
    assert samples.digest != read_samples(str(tmp_path / "a.npz"), FORM).digest


GOOD = {"x": np.zeros((2, 3), np.float32), "n": np.array(0)}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": GOOD["x"]}, "lacks n; the model's inputs are x, n"),
        ({**GOOD, "y": GOOD["x"]}, "has y; the model's inputs are x, n"),
        ({**GOOD, "x": np.zeros((2, 3))}, "x is float64, the model's input is float32"),
        ({**GOOD, "x": np.zeros((2, 4), np.float32)}, r"shape \[2, 4\], the model's input"),
        ({**GOOD, "x": np.zeros((3, 3), np.float32)}, r"shape \[3, 3\], the model's input"),
        ({**GOOD, "x": np.zeros((0, 2, 3), np.float32)}, "x is empty"),
        ({**GOOD, "x": np.full((2, 3), np.nan, np.float32)}, "x holds NaN or infinities"),
        ({**GOOD, "x": np.zeros((4, 3), np.float32)}, "different numbers of samples"),
    ],
)
def test_data_that_does_not_fit_is_refused_in_one_line(
    arrays: dict[str, Array], reason: str, tmp_path: Path
) -> None:
    file = save(tmp_path / "a.npz", **arrays)
    with pytest.raises(TunefarmError, match=reason) as caught:
        read_samples(str(file), FORM)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\3\4 cut off", b"\x93NUMPY", b"text"])
def test_a_file_that_is_no_npz_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(content)
    with pytest.raises(TunefarmError, match=r"a\.npz: it is no \.npz file"):
        read_samples(str(file), FORM)


def test_missing_file_and_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TunefarmError, match=r"cannot read .*nowhere"):
        read_samples(str(tmp_path / "nowhere.npz"), FORM)
    with pytest.raises(TunefarmError, match=r"there is no \.npz file"):
        read_samples(str(tmp_path), FORM)


def test_objects_in_an_npz_are_not_unpickled(tmp_path: Path) -> None:
    file = save(tmp_path / "a.npz", x=np.array([{}], object), n=np.array(0))
    with pytest.raises(TunefarmError, match="plain arrays"):
        read_samples(str(file), FORM)


def test_split_is_seeded_and_leaves_nothing_out() -> None:
    parts = Split.of(9, seed=3)
    assert sorted(parts.search + parts.check + parts.report) == list(range(9))
    assert [len(parts.search), len(parts.check), len(parts.report)] == [5, 2, 2]
    assert Split.of(9, seed=3) == parts
    assert any(Split.of(9, seed=seed) != parts for seed in range(4))
    with pytest.raises(TunefarmError, match=r"7 samples cannot be split .*give 8 samples or more"):
        Split.of(7, seed=0)


def test_samples_in_memory_are_known_by_their_contents() -> None:
    runs = [{"x": np.zeros((2, 3), np.float32), "n": np.array(n)} for n in range(3)]
    samples = Samples.of(runs, FORM)
    assert [number for _, number in whole(samples.part([2, 0]))] == [0, 2]
    assert len(samples.first(2)) == 2
    assert samples.digest == Samples.of(runs, FORM).digest
    assert samples.digest != Samples.of(runs[:2], FORM).digest


def _form(several: bool = False) -> SampleForm:
    """x [b, s, 2] and m [b, s], of b from 1 to 4 and s from 2 to 6."""
    b, s = Symbol("b", 1, 4), Symbol("s", 2, 6)
    rows: Dimension = Symbol.of("b", 1, 4)
    words: Dimension = Symbol.of("s", 2, 6)
    dims: PaddedShape = (((rows, 4),), ((words, 6),))
    ports = (
        SizedPort("x", DType.F32, (rows, words, 2), (*dims, ((2, 2),))),
        SizedPort("m", DType.I64, (rows, words), dims),
    )
    signature = Signature(ports, (), (AxisSource(b, "x", 0), AxisSource(s, "x", 1)), ())
    return SampleForm(signature, several)


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
