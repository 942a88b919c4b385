"""What it takes to build a decoder of gigabytes whose weights are external data.

    python -m tests.benchmarks.large_model [--layers 20] [--weights 4|32]
        [--tokens 1|2..64] [--folder FOLDER]

Writes a decoder of 4,096 features with seeded weights and no copy of them in memory, builds it in a
process of its own, and prints the size of the artifact and the largest memory of the build over it:
all pages that the process had (`peak`), and those that belong to no file (`anonymous`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from tests.compiler.decoders import Nodes, Sizes, decoder

_INLINE_BYTES = 1 << 16
"""Weights of fewer bytes lie in the model."""
_PAGE = 4096
_PIECE = 1 << 24


class ExternalNodes(Nodes):
    """Nodes whose large weights go to a file as they are made."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.file = file

    def constant(self, name: str, value: npt.ArrayLike, dtype: type = np.int64) -> str:
        array: npt.NDArray[np.generic] = np.asarray(value, dtype)
        if array.nbytes < _INLINE_BYTES:
            return super().constant(name, array, dtype)
        self._declare(name, array.shape, dtype)
        self.file.write(array.tobytes())
        return name

    def weight(self, name: str, *shape: int) -> str:
        random = np.random.default_rng([self.seed, *name.encode()])
        self._declare(name, shape, np.float32)
        left, scale = int(np.prod(shape)), shape[0] ** -0.5 if len(shape) > 1 else 1.0
        while left > 0:
            values = random.standard_normal(min(left, _PIECE), np.float32)
            self.file.write((values * np.float32(scale)).tobytes())
            left -= _PIECE
        return name

    def packed(self, name: str, rows: int, columns: int, block: int) -> list[str]:
        random = np.random.default_rng([self.seed, *name.encode()])
        shape = columns, rows // block, block // 2
        self._declare(f"{name}.packed", shape, np.uint8)
        left = columns * rows // 2
        while left > 0:
            self.file.write(random.bytes(min(left, _PIECE)))
            left -= _PIECE
        scales = random.uniform(0.5, 1.0, columns * rows // block) * rows**-0.5 / 4
        return [f"{name}.packed", self.constant(f"{name}.scales", scales, np.float32)]

    def _declare(self, name: str, shape: Sequence[int], dtype: type) -> None:
        self.file.seek(-self.file.tell() % _PAGE, 1)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        tensor = TensorProto(name=name, data_type=kind, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        length = int(np.prod(shape)) * np.dtype(dtype).itemsize
        entries = {"location": Path(self.file.name).name, "offset": self.file.tell()}
        for key, value in {**entries, "length": length}.items():
            tensor.external_data.add(key=key, value=str(value))
        self.weights[name] = tensor


def write(path: Path, layers: int, block: int) -> None:
    """The decoder, with its weights in a file next to it."""
    sizes = Sizes(layers, 32, 8, 128, 14336, 32000, 4096, block)
    with path.with_suffix(".data").open("wb") as file:
        onnx.save(decoder("gqa", sizes, nodes=ExternalNodes(file)), path)


def build(model: Path, artifact: Path, tokens: str) -> tuple[int, int, float]:
    """Build it in a process: the most bytes of all its pages and of those of no file, looked at 10
    times a second, and seconds."""
    shapes = [
        "batch_size=1",
        f"sequence_length={tokens}",
        "past_sequence_length=0..511",
        "total_sequence_length=1..575",
    ]
    settings = artifact.with_suffix(".toml")
    settings.write_text("[limits]\nseconds = 7200\n", "utf-8")
    command = [sys.executable, "-m", "tunefarm.tuner.commands.entry", "build", str(model)]
    command += ["--untuned", "--config", str(settings)]
    command += [word for shape in shapes for word in ("--shape", shape)]
    start, peak, anonymous = time.perf_counter(), 0, 0
    with subprocess.Popen([*command, "--output", str(artifact)]) as process:
        while process.poll() is None:
            found = [_pages(number) for number in _with_children(process.pid)]
            peak = max(peak, sum(all_pages for all_pages, _ in found))
            anonymous = max(anonymous, sum(own for _, own in found))
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit("the build failed")
    return peak, anonymous, time.perf_counter() - start


def _with_children(process: int) -> list[int]:
    """The process and those that it started: a model is read in a process of its own."""
    found = [process]
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text("utf-8").split():
                found += _with_children(int(child))
    except OSError:
        pass  # it has ended
    return found


def _pages(process: int) -> tuple[int, int]:
    """Bytes of all pages of a process, and of those of no file."""
    try:
        status = Path(f"/proc/{process}/status").read_text("utf-8")
    except OSError:
        return 0, 0
    lines = dict(line.split(":", 1) for line in status.splitlines())
    all_pages, own = (int(lines.get(name, "0").split()[0]) for name in ("VmRSS", "RssAnon"))
    return 1024 * all_pages, 1024 * own


def main(arguments: list[str] | None = None) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.large_model")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--weights", choices=("4", "32"), default="4", help="bits of a weight")
    parser.add_argument("--tokens", default="1|2..64", help="of a call")
    parser.add_argument("--folder", type=Path, help="keep the files there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        model, artifact = folder / "model.onnx", folder / "model.tuned"
        if not model.exists():
            write(model, options.layers, 32 if options.weights == "4" else 0)
        peak, anonymous, seconds = build(model, artifact, options.tokens)
        size = artifact.stat().st_size
        weights = model.with_suffix(".data").stat().st_size
    print(
        f"weights {weights / 1e9:.2f} GB, artifact {size / 1e9:.2f} GB, {seconds:.0f} s; of it "
        f"peak {peak / size:.2f}, anonymous {anonymous / size:.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
