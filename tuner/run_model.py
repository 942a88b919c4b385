"""Run a built model on given or random inputs, and time it."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from compiler.errors import InputError
from compiler.graph.ir import Array
from compiler.runtime.executable import Executable
from tuner.latency import seeded_inputs, spread
from tuner.report import format_seconds, format_share


@dataclass(frozen=True, slots=True)
class RunResult:
    """Seconds of each timed run, and what came out."""

    model: str
    threads: int
    samples: tuple[float, ...]
    outputs: Mapping[str, str]  # name -> type

    @property
    def latency(self) -> float:
        """Median in seconds."""
        return median(self.samples)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "latency": self.latency, "spread": spread(self.samples)}


def run_model(
    executable: Executable, files: Mapping[str, str], *, repeat: int, seed: int
) -> tuple[dict[str, Array], RunResult]:
    """Run `repeat` times after one warm-up; inputs come from .npy files, the rest is random.

    Raises InputError for a file that cannot be read or does not fit.
    """
    given = {name: read_array(path) for name, path in files.items()}
    inputs = {**seeded_inputs(executable.inputs, seed), **given}
    outputs = executable.run(inputs)
    samples = []
    for _ in range(repeat):
        start = time.perf_counter()
        outputs = executable.run(inputs)
        samples.append(time.perf_counter() - start)
    types = {name: str(type) for name, type in executable.outputs.items()}
    return outputs, RunResult(executable.spec.name, executable.threads, tuple(samples), types)


def run_lines(result: RunResult) -> list[str]:
    """The result for people."""
    count = len(result.samples)
    runs = "1 run" if count == 1 else f"{count} runs"
    return [
        *(f"{name}: {type}" for name, type in result.outputs.items()),
        f"latency: median {format_seconds(result.latency)}, "
        f"spread {format_share(spread(result.samples))}, "
        f"fastest {format_seconds(min(result.samples))} ({runs}, {result.threads} thread(s))",
    ]


def read_array(path: str) -> Array:
    """A .npy file's array; InputError if it is none."""
    try:
        loaded = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path} is not a .npy file: {error}") from error
    if not isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds several arrays, give a .npy file")
    return loaded


def write_outputs(outputs: Mapping[str, Array], path: str) -> None:
    """Write arrays to an .npz file, replacing an old one only when the new one is complete."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            for name, array in outputs.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
        os.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
