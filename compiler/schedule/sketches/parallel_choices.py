"""Which loops threads share in the sketches that move rows, windows and blocks through memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.nest_shape import Counts, Loop, Numbers
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Values
from tunefarm.compiler.schedule.steps.loop_kinds import Parallelize
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Fuse
from tunefarm.compiler.target import Target

PARALLEL_ELEMENTS = 16 * 1024  # below this many elements a second thread costs more than it saves
MEETINGS = 4.0  # that a shared stream lasts at least: below, a second thread gains nothing (Zen 4)
CHUNKS = (1, 2, 4, 8)  # per thread
ENOUGH = 4  # iterations per thread: then none waits for long


def pays_to_share(streamed: float, target: Target) -> bool:
    """Whether so many bytes from memory take a thread long enough for a second one to help."""
    machine = target.machine
    return streamed / machine.memory.read > MEETINGS * machine.threads.hand_over


def work(kernel: FusedKernel) -> int:
    """Points of the largest iteration space."""
    return max(
        prod(axis.extent for axis in (*stage.axes, *stage.reduce_axes)) for stage in kernel.stages
    )


def chunk_choices(kernel: FusedKernel, threads: int) -> list[tuple[Choice, ChoiceValue]]:
    """The choice of chunks with its default, where it pays to share the kernel's loops."""
    if threads == 1 or work(kernel) < PARALLEL_ELEMENTS:
        return []
    return [(Choice("chunks", CHUNKS), 2)]


def parallel_loops(values: Values, loops: Sequence[Loop]) -> list[Loop]:
    """Those of the outermost loops that run in parallel: all but tiles, which may have a tail."""
    if "chunks" not in values.domains:
        return []
    return [loop for loop in loops if loop.name == loop.axis] or list(loops[:1])


def parallel_steps(output: str, loops: Sequence[Loop], chunks: int) -> list[Step]:
    """Run the loops in parallel: as one fused loop if they are several."""
    if len(loops) < 2:
        return [Parallelize(output, loop.name, chunks) for loop in loops]
    names = tuple(loop.name for loop in loops)
    return [Fuse(output, names, "parallel"), Parallelize(output, "parallel", chunks)]


def pieces_and_grains(
    values: Values, parallel: Sequence[Sequence[Loop]], which: Counts, threads: int
) -> tuple[Numbers, Numbers]:
    """Iterations that are shared by the threads, and the chunks they are shared in; shapes [n].

    Candidate i shares the loops `parallel[which[i]]`.
    """
    if "chunks" not in values.domains:
        return np.ones(values.count), np.ones(values.count)
    turns = np.ones((len(parallel), values.count))
    for row, loops in enumerate(parallel):
        for loop in loops:
            turns[row] *= loop.turns
    pieces = turns[which, np.arange(values.count)]
    return pieces, np.minimum(pieces, values.integers("chunks") * threads)
