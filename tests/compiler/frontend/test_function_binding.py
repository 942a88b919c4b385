"""Functions by name on open sizes: what their rules make of symbols, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import pytest

from tests.compiler.foreign_models import DOMAIN, custom, first_alike
from tests.compiler.frontend.onnx_models import model, tensor
from tunefarm.compiler import register_function, unregister_function
from tunefarm.compiler.errors import ImportModelError, ShapeError, UnsupportedOperatorError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.signature import Signature
from tunefarm.compiler.types.tensor_type import TensorType

BOUNDS = {"b": ("2..8",), "n": ("1..16",), "t": ("4..9",)}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    unregister_function(f"{DOMAIN}::Made")


def made(shape: Any, **bounds: Any) -> Graph:
    """The graph of a function of x and z, where `shape` gives the result's shape of theirs."""

    def rule(operands: Any, attributes: object) -> list[TensorType]:
        x, z = operands
        return [TensorType(x.dtype, tuple(shape(x.shape, z.shape)))]

    register_function(f"{DOMAIN}::Made", lambda x, z: x, rule, version="1", replace=True)
    inputs = [tensor("x", ("b", "n")), tensor("z", ("n", "t"))]
    proto = model([custom("Made", "x z")], inputs, domains={DOMAIN: 1})
    return import_model_proto(proto, shapes={**BOUNDS, **bounds})


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (lambda x, z: x, "f32[b:2..8, n:1..16]"),
        (lambda x, z: (x[0], z[1]), "f32[b:2..8, t:4..9]"),
        (lambda x, z: (*x[:-1], x[-1] + 3), "f32[b:2..8, n + 3]"),
        (lambda x, z: (x[0] * x[1], 2), "f32[b*n, 2]"),
        (lambda x, z: ((x[1] + 1) // 2,), "f32[((n + 1) // (2))]"),
        (lambda x, z: (x[1] - x[1] // 2,), "f32[-1*((n) // (2)) + n]"),
        (lambda x, z: (x[0] if x[1] == z[0] else 1,), "f32[b:2..8]"),
        (lambda x, z: (), "f32[]"),
    ],
)
def test_results_have_the_sizes_that_the_rule_gives(shape: Any, told: str) -> None:
    signature = made(shape).signature
    assert isinstance(signature, Signature)
    assert str(signature).splitlines()[2] == f"output y: {told}"


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (
            lambda x, z: (int(x[0]), 4),
            "needs to know which number b is (dynamic: b:2..8) (use only "
            "sums, products and quotients (//, %) of sizes, or fix b with --shape, for example "
            "--shape b=8)",
        ),
        (
            lambda x, z: (4 if x[1] * x[0] > 64 else 2,),
            "needs to know whether b*n > 64 (dynamic: b:2..8, n:1..16) (use only "
            "sums, products and quotients (//, %) of sizes, or fix b, n with --shape, for "
            "example --shape b=8)",
        ),
        (
            lambda x, z: (x[1] - 3,),
            "gives a size that may be less than 0: n + -3 (dynamic: n:1..16) (give "
            "bounds within which it is not, with --shape)",
        ),
    ],
)
def test_a_rule_that_needs_a_number_is_told_of_symbol_and_node(shape: Any, told: str) -> None:
    with pytest.raises(ShapeError) as error:
        made(shape)
    rule = "the type rule of function my.domain::Made"
    assert str(error.value) == f"Made node 'the node': {rule} {told}"


def test_a_fixed_size_is_the_number_that_a_rule_needs() -> None:
    graph = made(lambda x, z: (int(x[0]), 4 if x[0] == 8 else 2), b=(8,))
    assert graph.types["y"].shape == (8, 4)


@pytest.mark.parametrize("shape", [(3,), ("n",)])
def test_texts_are_not_for_functions(shape: tuple[int | str, ...]) -> None:
    register_function(f"{DOMAIN}::Made", lambda x: x, first_alike, version="1")
    inputs = [tensor("x", shape, onnx.TensorProto.STRING)]
    proto = model([custom("Made", "x")], inputs, domains={DOMAIN: 1})
    with pytest.raises(UnsupportedOperatorError, match="a tensor of string that a function takes"):
        import_model_proto(proto, shapes={"n": ("1..9",)} if "n" in shape else {})


@pytest.mark.parametrize("shape", [lambda x, z: (2.5,), lambda x, z: (None, x[0])])
def test_a_shape_that_is_none_is_refused(shape: Any) -> None:
    with pytest.raises(ImportModelError, match=r"gives the shape .*tuple of integers and of sizes"):
        made(shape)
