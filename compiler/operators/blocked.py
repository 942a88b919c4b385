"""Blocked data, [N, ceil(C/b), H, W, b], as operators see it: which of them run on it, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import is_narrow
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

BLOCKED = "NCHWc"
PLAIN_TO_BLOCKED = "NCHW->NCHWc"

Shape: TypeAlias = tuple[int, ...]


@frozen
class BlockedUse:
    """A node that may run on blocked data, all types and attributes still those of plain data.

    `lanes` has for each operand the number in the lanes that pad its channels, None where the
    operand is plain; `constants` says which are known when the model is built. Data and result lie
    in blocks of `block` channels. Where it is `decided` that it does, what pays does not count:
    only whether it can be.
    """

    attributes: Attributes
    types: Types
    result: TensorType
    lanes: tuple[float | None, ...]
    constants: tuple[bool, ...]
    block: int
    decided: bool = False

    @property
    def fills_lanes(self) -> bool:
        """Are a contraction's sums as wide as the lanes: in f32, or in a given accumulator?"""
        dtype = self.types.present(0).dtype
        return dtype is DType.F32 or is_narrow(dtype) or bool(self.attributes["accumulator"])

    def is_whole(self, type: TensorType) -> bool:
        """Do the channels fill whole blocks, so that no lane pads them?"""
        return len(type.shape) == 4 and type.shape[1] % self.block == 0


@frozen
class BlockedForm:
    """A node on blocked data: its layout, and the number in the padding lanes of its result.

    One that `copies` costs a pass over memory that the plain one need not: it pays where what reads
    it is blocked.
    """

    layout: str
    lane: float
    copies: bool = False


@frozen
class BlockedLayout:
    """How a node runs on blocked data: its data in blocks of `reads` channels, or plain (0), and
    its result in blocks of `gives`."""

    layout: str
    reads: int
    gives: int


@frozen
class BlockedRule:
    """How an operator runs on blocked data.

    `form` is None where it has to run plain. An operator that `starts` does so without a blocked
    operand, too. One that `joins` reads all operands blocked, and plain ones are converted where
    that moves fewer bytes; others read the first one, and constants behind it, which `padded` gives
    other shapes (from attributes, shapes and layout), filled with zeros. Attributes `layout` and
    `block` are set where the operator has them; others that speak of axes are those that `adapted`
    gives, from attributes, shapes of plain operands and the channels of a block. One that `folds`
    its channels reads blocked data that is there in blocks, and gives a plain result: the axis
    within the blocks is one more of its `axes`.
    """

    form: Callable[[BlockedUse], BlockedForm | None]
    starts: bool = False
    joins: bool = False
    padded: Callable[[Attributes, Sequence[Shape], BlockedLayout], list[Shape]] | None = None
    adapted: Callable[[Attributes, Sequence[Shape], int], Mapping[str, Attribute]] | None = None
    folds: Callable[[BlockedUse], bool] | None = None
