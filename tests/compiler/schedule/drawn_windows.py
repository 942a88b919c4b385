"""Hypothesis strategies that draw convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import assume
from hypothesis import strategies as st

from tests.compiler.schedule.drawn_graphs import SPECIAL, Case, Chain, Shape, epilogue, extents
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute

_PLANES = [(1, 1), (7, 13), (13, 7), (2, 2), (1, 97), (97, 2), (14, 14), (7, 1), (16, 9)]
_KERNELS = [(1, 1), (3, 3), (1, 3), (5, 1), (2, 2)]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Strides, dilations and pads (begins, then ends) of the spatial axes."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    def attributes(self) -> dict[str, Attribute]:
        return {"strides": self.strides, "pads": self.pads, "dilations": self.dilations}

    def outputs(self, plane: Sequence[int], kernel: Sequence[int]) -> Shape:
        """Extents of a window's results; the draw is rejected where one is empty."""
        rank = len(plane)
        room = [
            plane[i] + self.pads[i] + self.pads[i + rank] - (kernel[i] - 1) * self.dilations[i] - 1
            for i in range(rank)
        ]
        assume(min(room) >= 0)
        return tuple(
            extent // stride + 1 for extent, stride in zip(room, self.strides, strict=True)
        )

    def transposed_outputs(self, plane: Sequence[int], kernel: Sequence[int]) -> Shape:
        """Extents of a transposed convolution's result."""
        rank = len(plane)
        result = tuple(
            (plane[i] - 1) * self.strides[i]
            + (kernel[i] - 1) * self.dilations[i]
            + 1
            - self.pads[i]
            - self.pads[i + rank]
            for i in range(rank)
        )
        assume(min(result) >= 1)
        return result


@st.composite
def geometries(draw: st.DrawFn, rank: int) -> Geometry:
    """Half of the draws have equal pads and no dilation, as most networks do."""
    ones = (1,) * rank
    strides = draw(st.sampled_from([ones, (2,) * rank, (1, 2, 1)[:rank]]))
    if draw(st.booleans()):
        return Geometry(strides, (draw(st.integers(0, 1)),) * (2 * rank), ones)
    pads = tuple(draw(st.integers(0, 3)) for _ in range(2 * rank))
    return Geometry(strides, pads, tuple(draw(st.integers(1, 2)) for _ in range(rank)))


@st.composite
def blocked_convolutions(draw: st.DrawFn, lanes: int) -> list[Case]:
    block = draw(st.sampled_from([lanes, lanes, lanes, 8]))
    plane, kernel = draw(st.sampled_from(_PLANES)), draw(st.sampled_from(_KERNELS))
    geometry = draw(geometries(2))
    geometry.outputs(plane, kernel)
    inputs, outputs = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 4, 7]))
    form = draw(st.sampled_from(["dense", "dense", "grouped", "depthwise"]))
    chain = Chain()
    constant = draw(st.integers(0, 4)) > 0
    groups = 1
    if form == "depthwise":
        groups, outputs = inputs * block, inputs
    elif form == "grouped":
        groups, inputs, outputs = 2, 2 * inputs, 2 * outputs
    data = chain.input((draw(st.integers(1, 2)), inputs, *plane, block))
    weight = chain.input((outputs * block, inputs * block // groups, *kernel), constant=constant)
    operands = [data, weight]
    if draw(st.booleans()):
        operands.append(chain.input((outputs * block,), constant=True))
    value = chain.apply("conv", *operands, layout="NCHWc", groups=groups, **geometry.attributes())
    epilogue(draw, chain, value)
    return chain.cases()


@st.composite
def odd_blocks(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Blocks that are no vectors, as NHWC's of all channels, and last blocks that are not full."""
    plane = draw(st.sampled_from([(1, 1), (7, 13), (3, 4), (1, 29), (9, 8)]))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (3, 3), (1, 3), (2, 2)]))
    geometry = draw(geometries(2))
    outer = geometry.outputs(plane, kernel)
    block, gives = (
        draw(st.sampled_from([lanes, lanes, 2 * lanes, 5, lanes + 4, 24, 53])) for _ in range(2)
    )
    inputs, outputs = (draw(st.integers(1, 3 if b <= lanes else 1)) for b in (block, gives))
    chain = Chain()
    groups, channels = 1, inputs * block - draw(st.integers(0, block - 1))
    if draw(st.integers(0, 3)) == 0:
        groups, outputs, channels, gives = inputs * block, inputs, 1, block
    data = chain.input((draw(st.integers(1, 2)), inputs, *plane, block))
    weight = chain.input((outputs * gives, channels, *kernel), constant=True)
    operands = [data, weight]
    if draw(st.booleans()):
        operands.append(chain.input((outputs * gives,), constant=True))
    attributes = {"layout": "NCHWc", "groups": groups, "block": gives, **geometry.attributes()}
    value = chain.apply("conv", *operands, **attributes)
    then = draw(st.sampled_from(["pool", "rows", "epilogue", "epilogue"]))
    if then == "pool":
        pads, shape = (1, 1, 1, 1), tuple((extent - 1) // 2 + 1 for extent in outer)
        pooled: dict[str, Attribute] = {"kernel": (3, 3), "strides": (2, 2), "pads": pads}
        chain.apply("max_pool", value, layout="NCHWc", shape=shape, **pooled)
    elif then == "rows":
        left_out = draw(st.integers(0, gives - 1))
        chain.apply("from_blocked", value, channels=outputs * gives - left_out)
    else:
        epilogue(draw, chain, value)
    return chain.cases()


@st.composite
def transposed_convolutions(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Blocked, with strides that divide the kernel, or not, or have a factor of the dilation."""
    plane = draw(st.sampled_from([(1, 1), (7, 13), (3, 4), (1, 29), (8, 5)]))
    kernel = tuple(draw(st.sampled_from([1, 2, 2, 3, 4, 5])) for _ in range(2))
    strides = draw(st.sampled_from([(2, 2), (2, 2), (1, 2), (3, 2), (4, 4), (8, 1)]))
    pads = tuple(draw(st.integers(0, max(k - 1, 0))) for k in (*kernel, *kernel))
    geometry = Geometry(strides, pads, draw(st.sampled_from([(1, 1), (1, 1), (2, 3)])))
    shape = geometry.transposed_outputs(plane, kernel)
    if draw(st.booleans()):  # what an output padding adds, so that phases are whole
        whole = zip(shape, strides, strict=True)
        shape = tuple(-(-extent // stride) * stride for extent, stride in whole)
    inputs, outputs = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5]))
    form = draw(st.sampled_from(["dense", "dense", "grouped", "depthwise"]))
    chain = Chain()
    data = chain.input((draw(st.integers(1, 2)), inputs * 2, *plane, lanes))
    groups, group_outputs = {
        "dense": (1, outputs * lanes),
        "grouped": (2, outputs * lanes),
        "depthwise": (2 * inputs * lanes, 1),
    }[form]
    constant = draw(st.integers(0, 4)) > 0
    weight = chain.input((2 * inputs * lanes, group_outputs, *kernel), constant=constant)
    operands = [data, weight]
    if draw(st.booleans()):
        operands.append(chain.input((group_outputs * groups,), constant=True))
    attributes = {"layout": "NCHWc", "groups": groups, "shape": shape, **geometry.attributes()}
    value = chain.apply("conv_transpose", *operands, **attributes)
    epilogue(draw, chain, value)
    return chain.cases()


@st.composite
def stem_convolutions(draw: st.DrawFn, lanes: int) -> list[Case]:
    plane, kernel = draw(st.sampled_from(_PLANES)), draw(st.sampled_from([*_KERNELS, (7, 7)]))
    geometry = draw(geometries(2))
    geometry.outputs(plane, kernel)
    channels, outputs = draw(st.integers(1, 4)), lanes * draw(st.integers(1, 5))
    chain = Chain()
    data = chain.input((draw(st.integers(1, 2)), channels, *plane))
    operands = [data, chain.input((outputs, channels, *kernel), constant=True)]
    if draw(st.booleans()):
        operands.append(chain.input((outputs,), constant=True))
    value = chain.apply(
        "conv", *operands, layout="NCHW->NCHWc", block=lanes, **geometry.attributes()
    )
    epilogue(draw, chain, value)
    return chain.cases()


@st.composite
def plain_convolutions(draw: st.DrawFn, lanes: int) -> list[Case]:
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    most = {1: 97, 2: 16, 3: 7}[rank]
    plane = tuple(draw(extents(lanes, most)) for _ in range(rank))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    geometry = draw(geometries(rank))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inputs, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([DType.F32, DType.F32, DType.F32, DType.F64]))
    batch = draw(st.integers(1, 2))
    chain = Chain()
    constant = draw(st.booleans())
    if draw(st.booleans()):  # what packs channels, phases and rows of windows
        kernel = tuple(draw(st.integers(1, 7 if rank < 3 else 3)) for _ in range(rank))
        strides = tuple(draw(st.integers(1, 5 if rank < 3 else 2)) for _ in range(rank))
        geometry = replace(geometry, strides=strides)
        form = draw(st.sampled_from(["depthwise", "channels", "channels of groups"]))
        constant = True
        if form == "depthwise":
            groups, inputs, outputs = draw(st.integers(2, 5)), 1, draw(st.integers(1, 2))
        else:
            groups = 1 if form == "channels" else draw(st.integers(2, 3))
            outputs = draw(st.sampled_from([1, 2, 3])) * lanes - draw(st.integers(0, 1)) * 3
            assume(outputs > 0)
    data = chain.input((batch, groups * inputs, *plane), dtype)
    if draw(st.integers(0, 3)) == 0:
        shape = geometry.transposed_outputs(plane, kernel)
        weight = chain.input((groups * inputs, outputs, *kernel), dtype, constant=constant)
        value = chain.apply(
            "conv_transpose", data, weight, groups=groups, shape=shape, **geometry.attributes()
        )
    else:
        geometry.outputs(plane, kernel)
        weight = chain.input((groups * outputs, inputs, *kernel), dtype, constant=constant)
        operands = [data, weight]
        if draw(st.booleans()):
            operands.append(chain.input((groups * outputs,), dtype, constant=constant))
        value = chain.apply("conv", *operands, groups=groups, **geometry.attributes())
    epilogue(draw, chain, value)
    return chain.cases()


@st.composite
def pools(draw: st.DrawFn, lanes: int) -> list[Case]:
    blocked = draw(st.booleans())
    plane = draw(st.sampled_from([*_PLANES, (9, 21), (5, 50)]))
    kernel = draw(st.sampled_from([*_KERNELS, (3, 3), (5, 5), (4, 3)]))
    geometry = draw(geometries(2))
    assume(all(pad < kernel[i % 2] for i, pad in enumerate(geometry.pads)))
    shape = geometry.outputs(plane, kernel)
    chain = Chain(special=draw(SPECIAL))
    dtype = draw(st.sampled_from([DType.F32, DType.F32, DType.F32, DType.F64, DType.I8, DType.U8]))
    layout = "NCHWc" if blocked else "NCHW"
    trail = (lanes,) if blocked else ()
    data = chain.input((draw(st.integers(1, 2)), draw(st.integers(1, 3)), *plane, *trail), dtype)
    if draw(st.booleans()) or not dtype.is_float:
        name = draw(st.sampled_from(["max_pool", "max_pool", "sum_pool"]))
        name = name if dtype.is_float else "max_pool"
        value = chain.apply(
            name, data, kernel=kernel, shape=shape, layout=layout, **geometry.attributes()
        )
    else:
        include = draw(st.booleans())
        value = chain.apply(
            "average_pool",
            data,
            kernel=kernel,
            shape=shape,
            layout=layout,
            count_include_pad=include,
            **geometry.attributes(),
        )
    if dtype.is_float:
        epilogue(draw, chain, value)
    return chain.cases()
