"""What a signature says of conditions that do not hold."""

from __future__ import annotations

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import AxisSource, Check, Signature, SizedPort
from tunefarm.compiler.types.sizes import Symbol


def test_a_condition_names_its_value_after_what_is_wrong() -> None:
    check = Check("%check:0", "axes", "the axes must be [1]")
    assert check.message == "the axes must be [1] ('axes' says so)"


def test_a_value_that_the_model_does_not_name_is_not_told() -> None:
    assert Check("%check:0", "%constant_1", "the loop goes on").message == "the loop goes on"


def test_a_signature_shows_at_a_prompt_what_it_prints() -> None:
    size = Symbol.of("batch", 1, 8)
    port = SizedPort("x", DType.F32, (size, 3), (((size, 8),), ((3, 3),)))
    signature = Signature((port,), (), (AxisSource(Symbol("batch", 1, 8), "x", 0),), (size,))
    assert repr(signature) == "<Signature input x: f32[batch:1..8, 3]>"
    assert signature.sources[0].place == "axis 0 of input 'x'"
