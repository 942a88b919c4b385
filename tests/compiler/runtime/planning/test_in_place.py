"""Outputs that may be written over an input: which they are, and runs that do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import BOOL, integers, model, tensor
from tunefarm import compiler
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.tensor_type import Array

SHAPE = (3, 5)


def executable_of(
    text: str,
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Array] | None = None,
    past: tuple[int | str, ...] = SHAPE,
) -> Executable:
    """Of nodes as `y = Where(c, x, z)`, a line each."""
    nodes = []
    for line in text.splitlines():
        result, call = line.split(" = ")
        operator, inputs = call.rstrip(")").split("(")
        operator, _, axis = operator.partition(":")
        attributes: dict[str, Any] = {"axis": int(axis)} if axis else {}
        nodes.append(helper.make_node(operator, inputs.split(", "), [result], **attributes))
    used = {name for node in nodes for name in node.input}
    ports = [tensor("x", past), tensor("z", SHAPE), tensor("c", SHAPE, BOOL)]
    proto = model(nodes, [item for item in ports if item.name in used], outputs, constants)
    return Executable(compile_model(import_model_proto(proto)).spec)


@pytest.mark.parametrize(
    "text",
    ["y = Where(c, x, z)", "e = Exp(z)\ny = Where(c, x, e)", "e = Exp(z)\ny = Where(c, e, x)"],
)
def test_an_outcome_at_its_own_place_may_be_written_over(text: str) -> None:
    assert executable_of(text).in_place["y"] == "x"


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("y = Add(x, z)", ("y",)),  # twice over itself it would be another sum
        ("y = Relu(x)", ("y",)),
        ("n = Neg(x)\ny = Where(c, n, z)", ("y",)),
        ("y = Where(c, x, z)\nw = Exp(x)", ("y", "w")),  # w reads x too, maybe later
        ("l = Less(x, z)\ny = Where(l, x, z)", ("y",)),
        ("r = Gather:1(x, turned)\ny = Where(c, r, z)", ("y",)),
        ("s = ReduceMax(x)\ne = Mul(s, z)\ny = Where(c, x, e)", ("y",)),
    ],
)
def test_what_reads_more_than_its_own_place_may_not(text: str, outputs: Sequence[str]) -> None:
    constants = {"turned": integers(4, 3, 2, 1, 0)} if "turned" in text else None
    assert executable_of(text, outputs, constants).in_place.get("y") != "x"


def test_an_input_is_written_over_once() -> None:
    found = executable_of("y = Where(c, x, z)\nw = Where(c, z, x)", ("y", "w")).in_place
    assert len(set(found.values())) == len(found)


def test_a_run_in_place_gives_what_a_run_gives() -> None:
    executable = executable_of("y = Where(c, x, z)")
    random = np.random.default_rng(0)
    x, z = (random.standard_normal(SHAPE, dtype=np.float32) for _ in "xz")
    c = random.random(SHAPE) < 0.5
    expected = executable.run({"x": x, "z": z, "c": c})["y"]
    found = executable.run({"x": x, "z": z, "c": c}, in_place=True)["y"]
    assert found is x
    np.testing.assert_array_equal(found, expected)


def test_an_input_that_cannot_be_written_over_is_refused() -> None:
    executable = executable_of("y = Where(c, x, z)")
    x, z = np.zeros(SHAPE, np.float32), np.ones(SHAPE, np.float32)
    c = np.ones(SHAPE, np.bool_)
    frozen = x.copy()
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="'x' is read-only"):
        executable.run({"x": frozen, "z": z, "c": c}, in_place=True)
    with pytest.raises(InputError, match="'x' does not lie as the model writes it"):
        executable.run({"x": np.zeros((5, 3), np.float32).T, "z": z, "c": c}, in_place=True)
    with pytest.raises(InputError, match="shares memory with another one"):
        executable.run({"x": x, "z": x, "c": c}, in_place=True)


def cache_of(positions: str) -> Executable:
    """A cache [2, past, 3] that grows by one."""
    node = helper.make_node("Concat", ["past", "new"], ["present"], axis=1)
    inputs = [tensor("past", (2, "past_length", 3)), tensor("new", (2, 1, 3))]
    graph = import_model_proto(model([node], inputs, ["present"]), {"past_length": (positions,)})
    return Executable(compile_model(graph).spec)


def test_a_cache_grows_in_its_memory() -> None:
    executable = cache_of("0..9")
    (cache,) = executable.empty_caches({"past_length": 0}).values()
    place, rows = cache.__array_interface__["data"][0], list[Array]()
    for number in range(10):
        rows.append(np.full((2, 1, 3), number, np.float32))
        cache = executable.run({"past": cache, "new": rows[-1]}, in_place=True)["present"]
        assert cache.__array_interface__["data"][0] == place
        np.testing.assert_array_equal(cache, np.concatenate(rows, 1))


def test_a_cache_that_lies_elsewhere_is_refused() -> None:
    executable = cache_of("0..9")
    past, new = np.zeros((2, 4, 3), np.float32), np.ones((2, 1, 3), np.float32)
    with pytest.raises(InputError, match="'past' does not lie as the model writes it"):
        executable.run({"past": past, "new": new}, in_place=True)


def test_an_artifact_says_what_is_written_in_place(tmp_path: Path) -> None:
    executable = cache_of("0..9")
    path = f"{tmp_path}/cache.tuned"
    executable.save(path)
    assert compiler.load(path).in_place == executable.in_place == {"present": "past"}


def test_caches_lie_alike_at_all_lengths() -> None:
    executable = cache_of("0..9")
    few, many = (executable.empty_caches({"past_length": n})["past"] for n in (2, 9))
    assert few.strides == many.strides
    assert few.shape == (2, 2, 3)
