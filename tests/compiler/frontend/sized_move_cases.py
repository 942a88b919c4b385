"""Moves along dynamic axes, as drawn models have found them."""

from __future__ import annotations

from typing import Any

from tests.compiler.frontend.onnx_models import integers
from tests.compiler.frontend.sized_cases import Case, case, floats, on_rows, on_shapes, with_second

SIZES = "b 1..3: 3 1 2, s 3..7: 7 3 5"


def _of_a_difference(nodes: str, **constants: Any) -> Case:
    """Nodes on x [s, 6] and d = s - b, which may be less than 0."""
    return case(
        "x[s,6] z[b]",
        f"long = Shape x start=0 end=1; wide = Shape z start=0 end=1; d = Sub long wide; {nodes}",
        "s 1..7: 7 5 2 3 6, b 1..7: 2 7 7 3 7",
        **constants,
    )


def _of_pixels(nodes: str, inputs: str = "") -> Case:
    """What nodes make of `planes` [b, 6, h * w] and `pixels` [b, h * w, 6] of x, and of z."""
    return case(
        f"x[b,6,h,w]{inputs}",
        "ends = Shape x start=0 end=2; flat = Concat ends [-1] axis=0; planes = Reshape x flat; "
        f"pixels = Transpose planes perm=[0,2,1]; {nodes}",
        "b 1..2: 1 2 2, h 1..5: 5 4 1, w 1..9: 3 9 1",
        m=floats(6, 6),
    )


def _attention(keys: str, values: str, queries: str) -> str:
    scores = f"scores = MatMul {queries} {keys}; weights = Softmax scores axis=-1"
    return f"{scores}; MatMul weights {values}"


MOVE_CASES: dict[str, Case] = {
    "attention of pixels": _of_pixels(
        "k = MatMul pixels m; turned = Transpose k perm=[0,2,1]; "
        + _attention("turned", "pixels", "k")
    ),
    "attention of pixels in planes": _of_pixels(_attention("planes", "pixels", "pixels")),
    "attention of few queries": _of_pixels(
        "k = MatMul pixels m; turned = Transpose k perm=[0,2,1]; " + _attention("turned", "k", "z"),
        " z[b,5,6]",
    ),
    "channels mixed by what pixels make of them": _of_pixels(
        "mixes = MatMul planes pixels; mixed = MatMul mixes planes; size = Shape x; "
        "Reshape mixed size"
    ),
    "windows of planes that are filled up": case(
        "x[b,s,s,6]",
        "size = Shape x start=1 end=2; rest = Mod size [4]; more = Sub [4] rest; "
        "added = Mod more [4]; whole = Add size added; count = Div whole [4]; "
        "pads = Concat [0] [0] [0] [0] [0] added added [0] axis=0; filled = Pad x pads; "
        "apart = Concat [-1] count [4] count [4] [6] axis=0; windows = Reshape filled apart; "
        "most = ReduceMax windows [2]; moved = Add windows most; "
        "together = Concat [-1] whole whole [6] axis=0; Reshape moved together",
        SIZES,
    ),
    "slice up to what may be less than 0": _of_a_difference("Slice x [0] d [0]"),
    "slice from what may be less than 0": _of_a_difference("Slice x d [99] [0]"),
    "slice backwards from what may be less than 0": _of_a_difference("Slice x d [-99] [0] [-1]"),
    "remainder of what may be less than 0": _of_a_difference(
        "r = Mod d [3] fmod=1; m = Mod d [3]; Concat r m d axis=0"
    ),
    "quotients of what may be less than 0": _of_a_difference(
        "q = Div d [3]; n = Div d [-2]; both = Concat q n axis=0; shape = Add both [10]; "
        "ConstantOfShape shape"
    ),
    "split where bounds alone do not say that there is anything": _of_a_difference(
        "first = Min long wide; rest = Sub long first; sizes = Concat rest first axis=0; "
        "one two = Split x sizes axis=0; Concat two one axis=0"
    ),
    "filled and padded where bounds alone do not say that there is anything": _of_a_difference(
        "first = Min long wide; rest = Sub long first; minus = Sub [0] rest; more = Add rest [3]; "
        "same = Sub more [3]; zeros = ConstantOfShape same; "
        "pads = Concat [0] [0] minus [0] axis=0; cut = Pad x pads; number = Shape zeros; "
        "most = Sub first number; real = Cast most to=1; Add cut real"
    ),
    "the diagonals of squares of any size": case(
        "x[b,s,s] z[s,t]",
        "d = Einsum x equation=bii->bi; t = Einsum z equation=ii->; Add d t",
        SIZES + ", t 1..9: 7 3 5",
    ),
    "a sequence of two halves": on_shapes(
        "size = Gather shape [1]; more = Add size [1]; half = Div more [2]; each = Squeeze half; "
        "parts = SplitToSequence x each axis=1; second = SequenceAt parts 1; "
        "before = SequenceAt parts 0; Concat second before axis=1"
    ),
    "a sequence of rows, one at a time": on_shapes(
        "parts = SplitToSequence x 1 axis=1; end = SequenceAt parts -1; "
        "all = ConcatFromSequence parts axis=1; Add all end"
    ),
    "a sequence of parts whose sizes are computed": on_shapes(
        "size = Gather shape [1]; rest = Sub size [2]; sizes = Concat rest [2] axis=0; "
        "parts = SplitToSequence x sizes axis=1; second = SequenceAt parts 1; "
        "before = SequenceAt parts 0; Concat second before axis=1"
    ),
    "sequences backwards": case(
        "x[b,s,6] int n[b]", "ReverseSequence x n time_axis=1 batch_axis=0", SIZES
    ),
    "places added to from the end": case(
        "x[b,s,6] int i[b,2,6] z[b,2,6]",
        "places = Sub i [3]; ScatterElements x places z axis=1 reduction=add",
        SIZES,
    ),
    "places replaced from the end": case(
        "x[s,6] z[2,6]",
        "ScatterElements x places z axis=0",
        "s 3..7: 7 3 5",
        places=integers(*[-1] * 6, *[0] * 6).reshape(2, 6),
    ),
    "rows replaced from the end": case(
        "x[s,6] z[2,6]",
        "ScatterND x places z",
        "s 3..7: 7 3 5",
        places=integers(-1, 1).reshape(2, 1),
    ),
    "elements replaced from the end of both axes": case(
        "x[b,s,6] z[2,6]",
        "ScatterND x places z",
        "b 2..3: 3 2 3, s 3..7: 7 3 4",
        places=integers(-1, -3, 0, -1).reshape(2, 2),
    ),
    "blocks of an image of any size": case(
        "x[1,3,h,w]", "SpaceToDepth x blocksize=2", "h 2..7: 6 2 4, w 2..8: 8 2 6"
    ),
    "elements found in rows side by side": on_shapes("r = Reshape x [-1,6]; p = Relu r; NonZero p"),
    "different elements of all": on_rows("Unique x"),
    "padded to a multiple, with pads turned round": on_shapes(
        "n = Gather shape [1]; rest = Mod n [4]; left = Sub [4] rest; p = Mod left [4]; "
        "pairs = Concat [0] [0] [0] p [0] [0] axis=0; r = Reshape pairs [-1,2]; "
        "back = Slice r [-1] before [0] [-1]; turned = Transpose back perm=[1,0]; "
        "pads = Reshape turned [-1]; Pad x pads",
        before=integers(-(2**63) + 1),
    ),
    "features that none are left of": on_shapes(
        "h = Slice x [0] [6] [-1]; rest = Slice x [6] far [-1]; all none = Split x [6,0] axis=2; "
        "Concat h rest none all axis=2",
        far=integers(2**62),
    ),
    "rows repeated, with repeats of one axis by their place": on_shapes(
        "n = Gather shape [1]; values = Concat [1] n axis=0; hot = OneHot [1] 3 values; "
        "shape_of = Reshape hot [-1]; f = Unsqueeze first [1]; t = Tile f shape_of; "
        "known = OneHot [1] 3 [1,2]; two = Reshape known [-1]; tt = Tile t two; "
        "u = Slice tt [0] n [1]; Add x u",
        first=floats(1, 6),
    ),
    "starts of all rows, and from the end": on_shapes(
        "rows = Gather shape 0; columns = Gather shape 1; all = Mul rows columns; "
        "Range 0 all columns; back = Sub 0 columns; backwards = Range all 0 back",
        outputs=("y", "backwards"),
    ),
    "beams of each sentence apart": case(
        "x[r,4]", "a = Reshape x [-1,3,4]; ReduceMax a [0]", "r 3..12: 3 12 6"
    ),
    "blocks of an image's rows and columns as channels": case(
        "x[1,4,h,w]",
        "one = Unsqueeze x [3]; rows = Reshape one [0,0,-1,2,0]; "
        "blocks = Reshape rows [0,0,0,0,-1,3]; turned = Transpose blocks perm=[0,1,3,5,2,4]; "
        "channels = Reshape turned [0,-1,1,1,0,0]; Squeeze channels [2,3]",
        "h 2..12: 2 12 6, w 3..15: 3 15 9",
    ),
    "blocks of images of a left number, by divided heights and widths": case(
        "x[b,4,h,w]",
        "high = Shape x start=2 end=3; wide = Shape x start=3 end=4; upper = Div high [2]; "
        "left = Div wide [3]; sizes = Concat [-1] [4] upper [2] left [3] axis=0; "
        "blocks = Reshape x sizes; Transpose blocks perm=[0,1,3,5,2,4]",
        "b 1..3: 1 3 2, h 2..8: 2 8 4, w 3..9: 3 6 9",
    ),
    "as many rows of each block as are left": case(
        "x[b,s,6]",
        "batch = Shape x start=0 end=1; rows = Shape x start=1 end=2; fourth = Div rows [4]; "
        "sizes = Concat batch fourth [-1] [6] axis=0; Reshape x sizes",
        "b 1..3: 1 3 2, s 4..16: 4 16 8",
    ),
    "greatest of all rows": on_shapes("r = Reshape x [-1,6]; y at = TopK r [2] axis=0"),
    "products over channels that need not be there": with_second(
        "Conv x z kernel_shape=[3] pads=[1,1]", "5,s,3"
    ),
    "products turned round over channels": with_second("ConvTranspose x z strides=[2]", "s,4,3"),
    "channels of any number by their statistics": case(
        "x[b,s,6] g[s] r[s]", "v = Abs r; BatchNormalization x g g g v epsilon=0.1", SIZES
    ),
    "ones on the diagonal of any size": case("x[b,s]", "EyeLike x k=1", SIZES),
    "twice the sequence beside as much of another": case(
        "x[b,s,6] z[b,t,6]",
        "t = Tile x [1,2,1]; Max t z",
        "b 1..3: 3 1, s 3..7: 7 3, t 6..14: 14 6",
    ),
}
