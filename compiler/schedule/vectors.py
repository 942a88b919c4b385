"""What schedules count vectors in."""

from __future__ import annotations

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.roles import channel_block
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

UNROLLS = (1, 2, 4, 8)
"""Vectors that a sketch without register tiles may work on side by side."""


def vector_type(kernel: FusedKernel) -> DType:
    """The element type whose vectors the schedules of a kernel are made of, and cost.

    That of sums in f64, whose tiles would fill twice as many registers as there are; else f32: of
    narrower elements a vector then is a part of a register, of wider ones several. Another answer
    changes the schedules of kernels that have records.
    """
    anchor = kernel.stage(kernel.anchor)
    if anchor.reduce_axes and anchor.dtype is DType.F64 and channel_block(kernel) <= 1:
        return DType.F64
    return DType.F32


def vector_lanes(kernel: FusedKernel, target: Target) -> int:
    """Points that a vector of the kernel's schedules computes.

    As many as the target has lanes; where channels lie in narrower blocks, those of one.
    """
    lanes, block = target.lanes(vector_type(kernel)), channel_block(kernel)
    return block if 1 < block < lanes and lanes % block == 0 else lanes


def loads_a_cycle(target: Target) -> float:
    """Whole vectors that a core loads from its first-level cache in a cycle."""
    return target.machine.l1.read / target.vector_bytes


def lanes_along(extent: int, lanes: int, target: Target) -> int:
    """Points of a vector along an axis that may be shorter than the target's `lanes`.

    A part of a register is as good as a whole one where masks load it, else its powers of two.
    """
    if extent >= lanes or target.has_avx512:
        return min(extent, lanes)
    return 1 << max(extent.bit_length() - 1, 0)
