"""What a kernel should answer: inputs and reference results, computed once and kept as .npy files.

The files live in a scratch directory that the runner owns; worker processes map them into memory.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.worker.inputs import make_inputs
from tunefarm.measure.worker.rounding import Rounding, rounding_of

SEEDS = (0, 1)


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    """One seed's inputs by name (logical layout) and the expected output."""

    inputs: Mapping[str, Array]
    expected: Array


@dataclass(frozen=True, slots=True)
class Reference:
    """The cases that a kernel is checked with, and what rounds its results."""

    cases: tuple[ReferenceCase, ...]
    rounding: Rounding


def ensure_reference(
    kernel: FusedKernel, key: str, scratch: Path, sizes: Sequence[int] = ()
) -> Reference:
    """The reference of the kernel with this workload key, computed unless `scratch` has it.

    Of a model with run-time sizes at these `sizes`, see `make_inputs`.

    Two processes may ask at once: one computes, the other waits. A directory appears under its
    final name only when it is complete.
    """
    if not key.isalnum():
        raise MeasureError(f"workload key {key!r} is no file name")
    name = "-".join((key, *map(str, sizes)))
    folder = scratch / name
    if not folder.is_dir():
        scratch.mkdir(parents=True, exist_ok=True)
        with _locked(scratch / f"{name}.lock"):
            if not folder.is_dir():
                _compute(kernel, key, folder, sizes)
    return _open(kernel, folder)


def _compute(kernel: FusedKernel, key: str, folder: Path, sizes: Sequence[int]) -> None:
    from tunefarm.compiler.kernels.evaluate import evaluate_kernel

    part = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=folder.parent))
    for seed in SEEDS:
        inputs = make_inputs(kernel, seed, key, sizes)
        for buffer in kernel.inputs:
            path = part / _input_file(buffer.constant, seed, buffer.name)
            if not path.exists():
                _save(path, inputs[buffer.name])
        with np.errstate(all="ignore"):
            expected = evaluate_kernel(kernel, inputs, accumulate_double=True)
        output = kernel.output
        if expected.shape != output.shape or expected.dtype != output.dtype.numpy:
            raise MeasureError(
                f"the reference of {kernel.name} has type {expected.dtype}{list(expected.shape)},"
                f" not {output.dtype}{list(output.shape)}"
            )
        _save(part / f"expected-{seed}.npy", expected)
    part.rename(folder)


def _open(kernel: FusedKernel, folder: Path) -> Reference:
    opened: dict[str, Array] = {}

    def load(name: str, dtype: DType) -> Array:
        if name not in opened:
            opened[name] = np.load(folder / name, mmap_mode="r").view(dtype.numpy)
        return opened[name]

    cases = tuple(
        ReferenceCase(
            {b.name: load(_input_file(b.constant, seed, b.name), b.dtype) for b in kernel.inputs},
            load(f"expected-{seed}.npy", kernel.output.dtype),
        )
        for seed in SEEDS
    )
    return Reference(cases, rounding_of(kernel))


def _save(path: Path, array: Array) -> None:
    """Write an array; elements that NumPy has no name for in files as integers of their size."""
    plain = array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array
    np.save(path, np.ascontiguousarray(plain))


def _input_file(constant: bool, seed: int, name: str) -> str:
    return f"constant-{name}.npy" if constant else f"input-{name}-{seed}.npy"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`; the kernel releases it if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
