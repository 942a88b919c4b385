"""Sliding windows of convolutions and pools, on data with any number of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.expr.nodes import Const, Expr, add, integer, mul
from tunefarm.compiler.kernels.kernel import KernelBuilder, Tensor
from tunefarm.compiler.operators.rules import check, pad_stage
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import Axis, extent_of, is_unpadded, size_of, whole
from tunefarm.compiler.types.sizes import Dimension, bounds_of, divide, greater


@frozen
class Windows:
    """Taps, strides, padding and dilations, one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    def reach(self, axis: int, outputs: int = 1) -> int:
        """How many consecutive (padded) input positions a row of windows reads."""
        taps = (self.kernel[axis] - 1) * self.dilations[axis]
        return (outputs - 1) * self.strides[axis] + taps + 1

    def positions(self, outputs: Sequence[Expr], taps: Sequence[Expr]) -> list[Expr]:
        """The (padded) input position that each axis' tap of a window reads."""
        return [
            add(mul(output, integer(stride)), mul(tap, integer(dilation)))
            for output, tap, stride, dilation in zip(
                outputs, taps, self.strides, self.dilations, strict=True
            )
        ]

    def padded(
        self,
        builder: KernelBuilder,
        data: Tensor,
        channel: str,
        outputs: Sequence[int],
        value: Const,
    ) -> Tensor:
        """The data with as much padding as the windows read; an axis behind is a channel block."""
        behind = data.shape[2 + self.rank :]
        reaches = [self.reach(axis, count) for axis, count in enumerate(outputs)]
        names = ["n", channel, *spatial_names(self.rank, "i")]
        return pad_stage(
            builder,
            data,
            [*names, *(f"{channel.removesuffix('b')}i" for _ in behind)],
            [0, 0, *self.begins, *(0 for _ in behind)],
            [*data.shape[:2], *reaches, *behind],
            value,
        )

    def taps(self) -> list[tuple[str, int]]:
        """The axes over a window."""
        return list(zip(spatial_names(self.rank, "k"), self.kernel, strict=True))


def read_windows(attributes: Attributes, kernel: Sequence[int]) -> Windows:
    """The windows that the attributes describe; an empty tuple stands for ones, or no padding.

    Raises `ShapeError` for a wrong number of entries or values that are not positive.
    """
    rank = len(kernel)
    strides = attributes.integers("strides") or (1,) * rank
    dilations = attributes.integers("dilations") or (1,) * rank
    pads = attributes.integers("pads") or (0,) * (2 * rank)
    for name, values in (("strides", strides), ("dilations", dilations)):
        check(
            len(values) == rank and min(values, default=1) >= 1,
            f"{name} {list(values)} needs {rank} positive entries",
        )
    check(len(pads) == 2 * rank, f"pads {list(pads)} needs {2 * rank} entries")
    return Windows(tuple(kernel), strides, pads[:rank], pads[rank:], dilations)


def spatial_names(rank: int, prefix: str) -> list[str]:
    """Names of spatial axes, outermost first: od, oh, ow for the prefix o and rank 3."""
    if rank <= 3:
        return [prefix + letter for letter in "dhw"[3 - rank :]]
    return [f"{prefix}{position}" for position in range(rank)]


def window_count(
    size: Dimension, reach: int, stride: int, more: int, *, cut: bool = False
) -> Dimension:
    """Windows of `reach` elements, `stride` apart, over `more` elements than there are.

    With `cut` there is one where less than a stride is missing, as ONNX's formula has it.
    """
    count = divide(size + (more - reach), stride) + 1
    low, _ = bounds_of(count)
    if cut and low < 1 and bounds_of(size)[0] + more - reach > -stride:
        return greater(count, 1)
    if low < 1:
        raise ShapeError(
            f"a window of {reach} may not fit into the size {size} with a padding of {more}",
            hint="raise the lower bound of its symbols",
        )
    return count


def fill_behind(types: Types, windows: Windows, number: int, content: str) -> None:
    """Ask for `content` behind the true size of a spatial axis of the first operand, unless its
    windows all end within that: as many as fit are there."""
    axis = types.axis(0, 2 + number)
    room = bounds_of(size_of(axis))[0] + windows.begins[number] - windows.reach(number)
    if windows.ends[number] or room < 0:
        types.fill(0, 2 + number, content)


def slid_axis(
    types: Types, windows: Windows, number: int, count: int | None = None, *, cut: bool = False
) -> Axis:
    """The axis of windows over a spatial axis of the first operand.

    There are as many as fit over its bounds, or `count` of them. Raises `ShapeError` where none is.
    """
    axis = types.axis(0, 2 + number)
    reach, stride = windows.reach(number), windows.strides[number]
    more = windows.begins[number] + windows.ends[number]
    if count is None:
        extent = extent_of(axis) + more
        check(
            reach <= extent,
            f"a kernel that reaches over {reach} does not fit spatial axis {number} "
            f"of {extent} with padding",
        )
        count = (extent - reach) // stride + 1
    if is_unpadded(axis):
        return whole(count)
    if reach == stride == 1 and not more:
        return axis
    types.require_in_one_piece(0, 2 + number, "windows over an axis")
    return ((window_count(axis[0][0], reach, stride, more, cut=cut), count),)


def require_whole_taps(types: Types) -> None:
    """Raise `ShapeError` where an axis of the weights' taps is padded."""
    for axis in range(2, len(types.present(1).shape)):
        types.require_whole(1, axis, "an axis of the weights")


def match_channels(types: Types, axis: int, groups: int, otherwise: str) -> None:
    """The channels of the data are those of the weights' `axis`, or several groups of them.

    Those that need not all be there are 0 in both. Raises `ShapeError(otherwise)` where the numbers
    differ.
    """
    if groups == 1:
        places = (0, 1), (1, axis)
        types.same(*places, otherwise=otherwise)
        for place in places:
            types.fill(*place, "zero")
        return
    per_group = groups if axis else 1  # those of all groups are the first axis
    check(types.present(0).shape[1] == types.present(1).shape[axis] * per_group, otherwise)
    types.require_whole(0, 1, "the axis of channels in groups")
    for position in types.positions()[1:]:
        for number in range(min(2, len(types.present(position).shape))):
            types.require_whole(position, number, "an axis of the weights")
