"""A step of a decoder with caches of a fixed length, by how much room they have.

    python -m tests.benchmarks.cache_room [--rooms 512,4096] [--at 100] [--threads T]

Builds a decoder with GroupQueryAttention for caches of each length, writes `--at` tokens in place,
and runs the next step in each, interleaved. Prints the time over that with the smallest caches with
a 95 % interval; their logits must be equal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import onnx

from tests.benchmarks.paired import compare_paired
from tests.compiler.decoders import Sizes, decoder
from tunefarm import compiler
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.confirm.latency import LatencyOptions, interleaved_latencies, pinned

SIZES = Sizes(layers=2, heads=8, groups=2, width=64, hidden=1024, words=512, positions=8192)
TOLERANCE = 1e-5
"""Of the largest logit: blocks of keys of other sizes sum in another order."""


def build(path: Path, room: int, threads: int = 1) -> Executable:
    """The decoder that takes one token, with caches of this length."""
    onnx.save(decoder("rotary", SIZES, past=room), path)
    shapes: dict[str, tuple[int | str, ...]] = {"batch_size": (1,), "sequence_length": (1,)}
    shapes["total_sequence_length"] = (room,)
    return compiler.build(path, shapes=shapes, threads=threads)


class Decoding:
    """An executable with its caches."""

    def __init__(self, executable: Executable, room: int) -> None:
        self.executable, self.room = executable, room
        self.caches = executable.empty_caches()

    def step(self, place: int) -> Array:
        """The logits of the token at this place, written in place."""
        mask = np.zeros((1, self.room), np.int64)
        mask[:, : place + 1] = 1
        token = np.array([[place % SIZES.words]], np.int64)
        inputs = {"input_ids": token, "attention_mask": mask, **self.caches}
        outputs = self.executable.run(inputs, in_place=True)
        pairs = self.executable.in_place.items()
        self.caches = {past: outputs[present] for present, past in pairs}
        return outputs["logits"]


def main(arguments: list[str] | None = None) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cache_room")
    parser.add_argument("--rooms", default="512,4096")
    parser.add_argument("--at", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    rooms = sorted(int(room) for room in options.rooms.split(","))
    with tempfile.TemporaryDirectory() as folder, pinned(options.threads):
        decodings = [
            Decoding(build(Path(folder, f"{room}.onnx"), room, options.threads), room)
            for room in rooms
        ]
        logits = []
        for decoding in decodings:
            for place in range(options.at):
                decoding.step(place)
            logits.append(decoding.step(options.at).astype(np.float64))
        for room, found in zip(rooms, logits, strict=True):
            error = float(np.abs(found - logits[0]).max() / np.abs(logits[0]).max())
            if error > TOLERANCE:
                raise SystemExit(f"with room for {room} logits differ by {error:.1e}")
        timing = LatencyOptions(25, 0.01, 5.0)
        runs = [partial(decoding.step, options.at) for decoding in decodings]
        first, *others = interleaved_latencies(runs, timing)
        print(f"room {rooms[0]:5}  {1e3 * median(first):.3f} ms")
        for room, seconds in zip(rooms[1:], others, strict=True):
            ratio = compare_paired(seconds, first)
            print(
                f"room {room:5}  {1e3 * median(seconds):.3f} ms, over that of {rooms[0]} "
                f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
