"""Hypothesis strategies that draw products, reductions, pointwise kernels and moves of elements."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from hypothesis import assume
from hypothesis import strategies as st

from tests.compiler.schedule.drawn_graphs import (
    SPECIAL,
    Case,
    Chain,
    Shape,
    epilogue,
    extents,
    shapes,
)
from tunefarm.compiler.types.dtypes import DType


@st.composite
def products(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Matrix products: batched, transposed, with vectors, with a bias and an activation."""
    m, n, k = draw(extents(lanes)), draw(extents(lanes)), draw(extents(lanes))
    batch = draw(st.sampled_from([(), (), (), (2,), (3, 2), (1, 3)]))
    dtype = draw(st.sampled_from([DType.F32] * 5 + [DType.F64, DType.I32, DType.I64]))
    constant = draw(st.booleans())
    transpose_a, transpose_b = draw(st.integers(0, 3)) == 0, draw(st.booleans())
    right_batch = () if constant else draw(st.sampled_from([batch, batch[1:]]))
    chain = Chain()
    left = chain.input((*batch, *((k, m) if transpose_a else (m, k))), dtype)
    right = chain.input(
        (*right_batch, *((n, k) if transpose_b else (k, n))), dtype, constant=constant
    )
    value = chain.apply("matmul", left, right, transpose_a=transpose_a, transpose_b=transpose_b)
    if draw(st.booleans()):
        value = chain.apply("add", value, chain.input((n,), dtype, constant=True))
    if dtype.is_float:
        epilogue(draw, chain, value)
    return chain.cases()


@st.composite
def reductions(draw: st.DrawFn, lanes: int) -> list[Case]:
    shape = draw(shapes(lanes, (1, 4), 6000))
    dtype = draw(st.sampled_from([DType.F32] * 4 + [DType.F64, DType.I32, DType.I64, DType.U8]))
    chain = Chain(special=draw(SPECIAL))
    names = ["reduce_sum", "reduce_max", "reduce_min", "arg_max", "arg_min", "cumsum"]
    names += ["reduce_mean", "reduce_prod"] if dtype.is_float else []
    operator = draw(st.sampled_from(names))
    value = chain.input(shape, dtype, near_one=operator == "reduce_prod")
    keepdims = draw(st.booleans())
    if operator == "cumsum":
        axis = draw(st.integers(0, len(shape) - 1))
        flags = {"exclusive": draw(st.booleans()), "reverse": draw(st.booleans())}
        chain.apply("cumsum", value, axis=axis, **flags)
        return chain.cases()
    if operator in ("arg_max", "arg_min"):
        axis, last = draw(st.integers(0, len(shape) - 1)), draw(st.booleans())
        chain.apply(operator, value, axis=axis, keepdims=keepdims, select_last_index=last)
        return chain.cases()
    if operator != "reduce_prod" and draw(st.booleans()):
        value = chain.apply("abs", value)
        if draw(st.booleans()):
            perm = tuple(draw(st.permutations(range(len(shape)))))
            value = chain.apply("transpose", value, perm=perm)
            shape = chain.shape(value)
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1).map(sorted).map(tuple))
    value = chain.apply(operator, value, axes=axes, keepdims=keepdims)
    if dtype.is_float:
        epilogue(draw, chain, value)
    return chain.cases()


@st.composite
def normalisations(draw: st.DrawFn, lanes: int) -> list[Case]:
    shape = draw(shapes(lanes, (1, 4)))
    dtype = draw(st.sampled_from([DType.F32] * 4 + [DType.F64]))
    chain = Chain(special=draw(SPECIAL))
    value = chain.input(shape, dtype)
    kind = draw(st.sampled_from(["softmax", "softmax", "log_softmax", "layer_norm", "lrn", "bn"]))
    if draw(st.booleans()) and kind not in ("lrn", "bn"):
        value = chain.apply("add", value, chain.input(shape[-1:], dtype))
    axis = draw(st.integers(0, len(shape) - 1))
    if kind in ("softmax", "log_softmax"):
        value = chain.apply(kind, value, axis=axis)
    elif kind == "layer_norm":
        scale = chain.input(shape[axis:], dtype, constant=True)
        bias = [chain.input(shape[axis:], dtype, constant=True)] if draw(st.booleans()) else []
        value = chain.apply("layer_norm", value, scale, *bias, axis=axis)
    elif kind == "lrn":
        assume(len(shape) == 4)
        value = chain.apply("lrn", value, size=draw(st.integers(1, 5)))
    else:
        assume(len(shape) >= 2)
        parameters = [chain.input(shape[1:2], dtype, near_one=True) for _ in range(4)]
        value = chain.apply("batch_norm", value, *parameters)
    epilogue(draw, chain, value)
    return chain.cases()


_FLOAT_UNARY = "neg abs sigmoid tanh erf relu gelu hard_swish softplus elu sin softsign".split()
_INTEGER_BINARY = "add sub mul max min div mod fmod bitwise_and bitwise_or bitwise_xor".split()
_COMPARISONS = ["less", "equal", "greater_equal"]
_INTEGERS = [DType.I32, DType.I64, DType.U8, DType.I8, DType.U32]


def broadcastable(draw: st.DrawFn, shape: Shape) -> Shape:
    """A shape that broadcasts to `shape`: leading axes left out, others 1."""
    kept = shape[draw(st.integers(0, len(shape))) if draw(st.booleans()) else 0 :]
    return tuple(extent if draw(st.integers(0, 3)) else 1 for extent in kept)


@st.composite
def pointwise(draw: st.DrawFn, lanes: int) -> list[Case]:
    shape = draw(shapes(lanes, (0, 4)))
    dtype = draw(st.sampled_from([DType.F32] * 6 + [DType.F64, *_INTEGERS, DType.BOOL]))
    chain = Chain(special=draw(SPECIAL))
    value = chain.input(shape, dtype)
    for _ in range(draw(st.integers(1, 4))):
        if dtype.is_float and draw(st.booleans()):
            value = chain.apply(draw(st.sampled_from(_FLOAT_UNARY)), value)
            continue
        if dtype is DType.BOOL:
            names = ["and", "or", "xor"]
        else:
            names = ["add", "sub", "mul", "max", "min"] if dtype.is_float else _INTEGER_BINARY
        constant = draw(st.booleans())
        other = chain.input(broadcastable(draw, shape), dtype, constant=constant)
        operands = [value, other] if draw(st.booleans()) else [other, value]
        value = chain.apply(draw(st.sampled_from(names)), *operands)
    ending = draw(st.sampled_from(["", "", "cast", "compare", "where"]))
    if ending == "cast":
        exact = not dtype.is_float or len(chain.nodes) == 0
        to = draw(st.sampled_from(["f32", "f64", *(("i32", "u8", "bool") if exact else ())]))
        chain.apply("cast", value, to=to)
    elif ending == "compare" and dtype is not DType.BOOL:
        inputs = [chain.input(broadcastable(draw, shape), dtype) for _ in range(2)]
        flags = chain.apply(draw(st.sampled_from(_COMPARISONS)), *inputs)
        chain.apply("where", flags, value, chain.input((), dtype))
    elif ending == "where":
        flags = chain.input(broadcastable(draw, shape), DType.BOOL)
        chain.apply("where", flags, value, chain.input(broadcastable(draw, shape), dtype))
    return chain.cases()


def _transpose(draw: st.DrawFn, chain: Chain, value: str, lanes: int) -> str:
    rank = len(chain.shape(value))
    return chain.apply("transpose", value, perm=tuple(draw(st.permutations(range(rank)))))


def _concat(draw: st.DrawFn, chain: Chain, value: str, lanes: int) -> str:
    shape, dtype = chain.shape(value), chain.types[value].dtype
    axis = draw(st.integers(0, len(shape) - 1))
    others = [
        chain.input((*shape[:axis], draw(extents(lanes, 13)), *shape[axis + 1 :]), dtype)
        for _ in range(draw(st.integers(1, 3)))
    ]
    return chain.apply("concat", value, *others, axis=axis)


def _pad(draw: st.DrawFn, chain: Chain, value: str, lanes: int) -> str:
    shape = chain.shape(value)
    mode = draw(st.sampled_from(["constant", "constant", "reflect", "edge", "wrap"]))
    low = 0 if mode != "constant" else -(min(shape) // 2)
    most = {"constant": 5, "reflect": min(shape) - 1, "edge": 5, "wrap": min(shape)}[mode]
    pads = tuple(draw(st.integers(low, min(5, most))) for _ in range(2 * len(shape)))
    assume(all(n + pads[i] + pads[i + len(shape)] >= 1 for i, n in enumerate(shape)))
    filled = 1.0 if chain.types[value].dtype is DType.BOOL else 2.0
    value_attribute = {"value": filled} if mode == "constant" else {}
    return chain.apply("pad", value, pads=pads, mode=mode, **value_attribute)


def _slice(draw: st.DrawFn, chain: Chain, value: str, lanes: int) -> str:
    starts, steps, result = [], [], []
    for extent in chain.shape(value):
        step = draw(st.sampled_from([1, 1, 2, -1, -2]))
        start = draw(st.integers(0, extent - 1))
        room = (extent - 1 - start if step > 0 else start) // abs(step) + 1
        starts.append(start)
        steps.append(step)
        result.append(draw(st.integers(1, room)))
    return chain.apply(
        "slice", value, starts=tuple(starts), steps=tuple(steps), shape=tuple(result)
    )


def _gather(draw: st.DrawFn, chain: Chain, value: str, lanes: int) -> str:
    shape = chain.shape(value)
    dtype = draw(st.sampled_from([DType.I64, DType.I32]))
    axis = draw(st.integers(0, len(shape) - 1))
    if draw(st.booleans()):
        picks = chain.input(draw(shapes(lanes, (0, 2), 40)), dtype)
        return chain.apply("gather", value, picks, axis=axis)
    picks = chain.input((*shape[:axis], draw(extents(lanes, 13)), *shape[axis + 1 :]), dtype)
    return chain.apply("gather_elements", value, picks, axis=axis)


def _expand(draw: st.DrawFn, chain: Chain, value: str, lanes: int) -> str:
    shape = chain.shape(value)
    if draw(st.booleans()):
        return chain.apply("tile", value, repeats=tuple(draw(st.integers(1, 3)) for _ in shape))
    wanted = tuple(draw(extents(lanes, 13)) if extent == 1 else extent for extent in shape)
    return chain.apply("expand", value, shape=(draw(st.integers(1, 2)), *wanted))


def _blocked(draw: st.DrawFn, chain: Chain, value: str, lanes: int) -> str:
    shape, dtype = chain.shape(value), chain.types[value].dtype
    rank = len(shape)
    if draw(st.booleans()):
        assume(rank >= 2)
        return chain.apply("to_blocked", value, block=draw(st.sampled_from([lanes, lanes, 8])))
    blocks, channels = draw(st.integers(1, 3)), draw(st.integers(1, lanes))
    data = chain.input((1, blocks, *draw(shapes(lanes, (2, 2), 200)), lanes), dtype)
    return chain.apply("from_blocked", data, channels=(blocks - 1) * lanes + channels)


def _trilu(draw: st.DrawFn, chain: Chain, value: str, lanes: int) -> str:
    assume(len(chain.shape(value)) >= 2)
    return chain.apply("trilu", value, upper=draw(st.booleans()), k=draw(st.integers(-2, 2)))


_MOVES: tuple[Callable[[st.DrawFn, Chain, str, int], str], ...] = (
    _transpose,
    _concat,
    _pad,
    _slice,
    _gather,
    _expand,
    _blocked,
    _trilu,
)


@st.composite
def movements(draw: st.DrawFn, lanes: int) -> list[Case]:
    """One or two operators that move elements, between pointwise ones."""
    shape = draw(shapes(lanes, (1, 4)))
    dtype = draw(st.sampled_from([DType.F32] * 4 + [DType.F64, DType.I64, DType.U8, DType.BOOL]))
    chain = Chain(special=draw(SPECIAL))
    value = chain.input(shape, dtype)
    if dtype.is_float and draw(st.booleans()):
        value = chain.apply(draw(st.sampled_from(["relu", "exp"])), value)
    for _ in range(draw(st.integers(1, 2))):
        assume(chain.shape(value))
        value = draw(st.sampled_from(_MOVES))(draw, chain, value, lanes)
        assume(prod(chain.shape(value)) <= 20000)
    if dtype.is_float and draw(st.booleans()):
        shape = chain.shape(value)
        chain.apply("add", value, chain.input(broadcastable(draw, shape), dtype))
    return chain.cases()
