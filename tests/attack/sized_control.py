"""Loops, scans and branches over values of open sizes, and sequences that they fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.attack.sized_arithmetic import count, number
from tests.attack.sized_drawing import SizedDrawing
from tests.attack.sized_shapes import open_axis, real

_STEP = "Tanh Relu Neg Abs Identity".split()


def _graph(
    name: str, nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any], outputs: Sequence[str]
) -> onnx.GraphProto:
    infos = [helper.make_empty_tensor_value_info(output) for output in outputs]
    return helper.make_graph(list(nodes), name, list(inputs), infos)


def _loop_inputs(at: int, *states: str) -> list[onnx.ValueInfoProto]:
    tensor = helper.make_tensor_value_info
    return [
        tensor(f"step_{at}", TensorProto.INT64, []),
        tensor(f"going_{at}", TensorProto.BOOL, []),
        *(tensor(state, TensorProto.FLOAT, None) for state in states),
    ]


def _times(d: SizedDrawing, x: str, least: int = 0) -> str:
    """How often a loop runs: a few times, as a caller says, or as sizes do."""
    kind = d.rng.choice(("given", "size", "number", "constant"))
    if kind == "given":
        return d.input_of([np.array(d.rng.randint(least, 4)) for _ in d.samples])
    if kind == "constant":
        return d.constant(np.array(d.rng.choice((least, 1, 3))))
    axis = open_axis(d, x)
    if kind == "number" or d.least(x, axis) < least:
        found = count(d, least)
        return found and d.node("Squeeze", found)
    return d.node("Squeeze", d.node("Shape", x, start=axis, end=axis + 1))


def collected(d: SizedDrawing) -> None:
    """A loop that gives a row of each step, which may read the step's own row."""
    x = real(d, 2)
    times = _times(d, x, 1)  # of no step onnxruntime gives rows of another rank
    at = len(d.nodes)
    if not times:
        return
    state, out, row = f"state_{at}", f"out_{at}", f"row_{at}"
    nodes = [
        helper.make_node("Identity", [f"going_{at}"], [f"more_{at}"]),
        helper.make_node(d.rng.choice(_STEP), [state], [f"half_{at}"]),
    ]
    captured = [x]
    if d.rng.random() < 0.5 and d.least(x, 0):
        size = f"size_{at}"
        nodes += [
            helper.make_node("Shape", [x], [size], start=0, end=1),
            helper.make_node("Mod", [f"step_{at}", size], [f"place_{at}"]),
            helper.make_node("Gather", [x, f"place_{at}"], [f"own_{at}"], axis=0),
            helper.make_node("Add", [f"half_{at}", f"own_{at}"], [out]),
        ]
    else:
        nodes.append(helper.make_node("Identity", [f"half_{at}"], [out]))
    axes = d.constant(np.array([0]))
    nodes.append(
        helper.make_node(d.rng.choice(("ReduceMean", "ReduceMax")), [out, axes], [row], keepdims=0)
    )
    body = _graph("collected", nodes, _loop_inputs(at, state), [f"more_{at}", out, row])
    d.node("Loop", times, "", x, body=body, captured=(*captured, axes), outputs=2)


def ended(d: SizedDrawing) -> None:
    """A loop that goes on as long as what it computes says, or sizes do."""
    x = real(d)
    at = len(d.nodes)
    state, out, more = f"state_{at}", f"out_{at}", f"more_{at}"
    half, small = (d.constant(np.array(n, np.float32), exact=True) for n in (0.5, 0.75))
    zero = d.constant(np.array(0, np.float32), exact=True)
    nodes = [
        helper.make_node("Mul", [state, half], [out]),
        helper.make_node("Abs", [out], [f"size_{at}"]),
        helper.make_node("Max", [f"size_{at}", zero], [f"least_{at}"]),
        helper.make_node("ReduceMax", [f"least_{at}"], [f"most_{at}"], keepdims=0),
        helper.make_node("Greater", [f"most_{at}", small], [more]),
    ]
    going = d.constant(np.array(True))
    body = _graph("ended", nodes, _loop_inputs(at, state), [more, out])
    captured = (half, small, zero)
    d.node("Loop", d.constant(np.array(9)), going, x, body=body, captured=captured)


def growing(d: SizedDrawing) -> None:
    """A state that is longer after each step, as caches are."""
    x = real(d, 2)
    axis = open_axis(d, x)
    times = d.rng.choice((d.constant(np.array(3)), _times(d, x)))
    at = len(d.nodes)
    if not times or not d.least(x, axis):
        return
    state, out = f"state_{at}", f"out_{at}"
    first = d.node("Slice", x, d.integers([0]), d.integers([1]), d.integers([axis]), keeps=True)
    nodes = [
        helper.make_node("Identity", [f"going_{at}"], [f"more_{at}"]),
        helper.make_node("Concat", [state, first], [out], axis=axis),
    ]
    body = _graph("growing", nodes, _loop_inputs(at, state), [f"more_{at}", out])
    if first:
        d.node("Loop", times, "", x, body=body, captured=(first,), keeps=True)


def scanned_back(d: SizedDrawing) -> None:
    """A scan over any axis, in either direction, of states and rows, and of a size."""
    x = real(d, 2)
    rank, at = len(d.shape(x)), len(d.nodes)
    axis = d.rng.randrange(rank)
    rest = [*range(axis), *range(axis + 1, rank)]
    if not all(sample[x].size for sample in d.samples):  # which onnxruntime does not survive
        return
    state, item, total, out = (f"{name}_{at}" for name in ("state", "item", "total", "out"))
    nodes = [
        helper.make_node(d.rng.choice(("Add", "Max", "Sub")), [state, item], [f"sum_{at}"]),
        helper.make_node(d.rng.choice(("Tanh", "Identity")), [f"sum_{at}"], [total]),
        helper.make_node(d.rng.choice(_STEP), [total], [out]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in (state, item)]
    body = _graph("scanned", nodes, inputs, [total, out])
    firsts = [np.zeros([sample[x].shape[a] for a in rest], np.float32) for sample in d.samples]
    start = d.input_of(firsts, exact=True)
    attributes: dict[str, Any] = {"num_scan_inputs": 1, "scan_input_axes": [axis]}
    attributes["scan_input_directions"] = [d.rng.randint(0, 1)]
    attributes["scan_output_directions"] = [d.rng.randint(0, 1)]
    attributes["scan_output_axes"] = [d.rng.randrange(rank)]
    d.node("Scan", start, x, body=body, outputs=2, **attributes)


def nested(d: SizedDrawing) -> None:
    """A loop each of whose steps decides by sizes, or by its number, what it does."""
    x = real(d)
    times = d.constant(np.array(d.rng.choice((2, 5))))
    limit = number(d, 1)
    at = len(d.nodes)
    if not limit:
        return
    state, out = f"state_{at}", f"out_{at}"
    sides = [
        _graph(side, [helper.make_node(operator, [state], [f"{side}_{at}"])], [], [f"{side}_{at}"])
        for side, operator in zip(("then", "else"), d.rng.sample(_STEP, 2), strict=True)
    ]
    nodes = [
        helper.make_node("Identity", [f"going_{at}"], [f"more_{at}"]),
        helper.make_node("Less", [f"step_{at}", limit], [f"less_{at}"]),
        helper.make_node("Squeeze", [f"less_{at}"], [f"first_{at}"]),
        helper.make_node("If", [f"first_{at}"], [out], then_branch=sides[0], else_branch=sides[1]),
    ]
    body = _graph("nested", nodes, _loop_inputs(at, state), [f"more_{at}", out])
    d.node("Loop", times, "", x, body=body, captured=(limit,))


def in_sequence(d: SizedDrawing) -> None:
    """Parts of an axis as a sequence that is filled, changed and joined, as tools write lists."""
    x = real(d)
    at, axis = len(d.nodes), open_axis(d, x)
    kind = d.rng.choice(("split", "made", "placed"))
    one, place = d.constant(np.array(1)), d.constant(np.array(d.rng.choice((0, -1))))
    parts, changed, out = f"parts_{at}", f"changed_{at}", f"joined_{at}"
    if kind == "split":
        nodes = [helper.make_node("SplitToSequence", [x, one], [parts], axis=axis)]
    else:
        nodes = [
            helper.make_node("Neg", [x], [f"minus_{at}"]),
            helper.make_node("SequenceConstruct", [x, f"minus_{at}", x], [parts]),
        ]
    if kind == "placed":
        nodes += [
            helper.make_node("SequenceAt", [parts, place], [f"item_{at}"]),
            helper.make_node("SequenceInsert", [parts, f"item_{at}", place], [f"more_{at}"]),
            helper.make_node("SequenceErase", [f"more_{at}", place], [changed]),
        ]
    else:
        nodes.append(helper.make_node("Identity", [parts], [changed]))
    new = d.rng.randint(0, 1) if kind != "split" else 0
    nodes.append(helper.make_node("ConcatFromSequence", [changed], [out], axis=axis, new_axis=new))
    then = _graph("listed", nodes, [], [out])
    other = _graph("other", [helper.make_node("Identity", [x], [f"same_{at}"])], [], [f"same_{at}"])
    true = d.constant(np.array(True))
    d.node("If", true, captured=(x, one, place), then_branch=then, else_branch=other, keeps=True)


def gathered_in_loop(d: SizedDrawing) -> None:
    """A sequence that each step of a loop adds to, joined behind it."""
    x = real(d, 2)
    if not d.least(x, 0):
        return
    size = d.node("Squeeze", d.node("Shape", x, start=0, end=1))
    at = len(d.nodes)
    if not size:
        return
    sequence = helper.make_tensor_sequence_value_info(f"list_{at}", TensorProto.FLOAT, None)
    grown = helper.make_tensor_sequence_value_info(f"longer_{at}", TensorProto.FLOAT, None)
    inner = helper.make_graph(
        [
            helper.make_node("Identity", [f"going_{at}"], [f"more_{at}"]),
            helper.make_node("Gather", [x, f"step_{at}"], [f"row_{at}"], axis=0),
            helper.make_node(d.rng.choice(_STEP), [f"row_{at}"], [f"new_{at}"]),
            helper.make_node("SequenceInsert", [f"list_{at}", f"new_{at}"], [f"longer_{at}"]),
        ],
        "adding",
        [*_loop_inputs(at), sequence],
        [helper.make_tensor_value_info(f"more_{at}", TensorProto.BOOL, []), grown],
    )
    new = d.rng.randint(0, 1)
    nodes = [
        helper.make_node("SequenceEmpty", [], [f"none_{at}"]),
        helper.make_node("Loop", [size, "", f"none_{at}"], [f"full_{at}"], body=inner),
        helper.make_node(
            "ConcatFromSequence", [f"full_{at}"], [f"joined_{at}"], axis=0, new_axis=new
        ),
    ]
    then = _graph("listed", nodes, [], [f"joined_{at}"])
    other = _graph("other", [helper.make_node("Identity", [x], [f"same_{at}"])], [], [f"same_{at}"])
    true = d.constant(np.array(True))
    d.node("If", true, captured=(x, size), then_branch=then, else_branch=other)


CONTROL = (
    collected,
    ended,
    growing,
    scanned_back,
    nested,
    in_sequence,
    gathered_in_loop,
)
"""Kinds of nodes, as those of `tests.attack.sized_kinds`."""
