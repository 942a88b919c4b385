"""Large arrays: which ones go to files, and that they hold what they did."""

from __future__ import annotations

import errno
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.decoders import Sizes, decoder
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.types import large_arrays
from tunefarm.compiler.types.large_arrays import LEAST_BYTES, is_mapped, kept, owner_of, release
from tunefarm.compiler.types.tensor_type import Array


def in_file(array: Array) -> bool:
    """Whether no memory of its own holds it."""
    return kept(array) is array and not array.flags.owndata and not array.flags.writeable


@pytest.fixture
def nothing_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_arrays, "FREE_BYTES", 0)


@pytest.mark.usefixtures("nothing_free")
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_large_arrays_hold_the_same_after_their_pages_are_given_back(dtype: type) -> None:
    rng = np.random.default_rng(0)
    arrays: list[Array] = [
        rng.integers(0, 200, LEAST_BYTES + number).astype(dtype) for number in range(3)
    ]
    copies = [kept(array) for array in arrays]
    release(1 << 40)
    for array, copy in zip(arrays, copies, strict=True):
        assert in_file(copy) and copy is not array
        np.testing.assert_array_equal(copy, array)


def test_small_arrays_and_the_first_large_ones_stay() -> None:
    small, large = np.zeros(16, np.float32), np.zeros(LEAST_BYTES, np.uint8)
    assert kept(small) is small
    assert kept(large) is large
    assert kept(large) is large  # it is counted once


@pytest.mark.usefixtures("nothing_free")
def test_parts_of_a_large_array_do_not_hold_its_memory() -> None:
    whole: Array = np.arange(LEAST_BYTES, dtype=np.uint8)
    memory = weakref.ref(whole)
    parts = [kept(whole[start : start + 32]) for start in (0, 100)] + [kept(whole[:0])]
    del whole
    assert memory() is None
    for part, start, count in zip(parts, (0, 100, 0), (32, 32, 0), strict=True):
        assert in_file(part)
        np.testing.assert_array_equal(part, np.arange(start, start + count))


@pytest.mark.usefixtures("nothing_free")
def test_arrays_stay_where_no_file_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(large_arrays, "_FILES", large_arrays._Files())
    monkeypatch.setattr("os.posix_fallocate", full)
    large = np.zeros(LEAST_BYTES, np.uint8)
    assert kept(large) is large


@pytest.mark.usefixtures("nothing_free")
def test_weights_of_a_model_are_in_files_at_each_stage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proto, ids = decoder("gqa", Sizes(hidden=320, block=32)), np.array([[3, 4]])
    onnx.save(proto, tmp_path / "plain.onnx")
    onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, size_threshold=1024)
    shapes: dict[str, tuple[int | str, ...]] = {"batch_size": (1,), "sequence_length": (2,)}
    shapes |= {"past_sequence_length": (1,), "total_sequence_length": (3,)}
    expected = compiler.build(tmp_path / "plain.onnx", shapes=shapes)
    monkeypatch.setattr(large_arrays, "LEAST_BYTES", 4096)
    graph = import_onnx(tmp_path / "model.onnx", shapes)
    for stage in (graph, optimise(graph, 8)):
        large = [array for array in stage.constants.values() if array.nbytes >= 4096]
        assert large and all(map(in_file, large))
    rng = np.random.default_rng(0)
    feed = {
        name: rng.standard_normal(type.shape).astype(np.float32)
        for name, type in expected.inputs.items()
        if type.dtype.is_float
    }
    feed |= {"input_ids": ids, "attention_mask": np.ones((1, 3), np.int64)}
    feed["position_ids"] = np.array([[1, 2]])
    packed = compile_model(graph, to_write=True).spec
    assert packed.constants and all(map(is_mapped, map(owner_of, packed.constants)))
    found = compiler.build(graph).run(feed)
    assert packed.digests[-1] == compile_model(graph).spec.digests[-1]
    for name, array in expected.run(feed).items():
        np.testing.assert_array_equal(found[name], array)
