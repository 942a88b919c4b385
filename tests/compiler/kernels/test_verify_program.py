"""Programs of kernel calls: accepted and refused ones side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.runtime.hand_kernels import add_kernel, call, make_program
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.kernels.kernel import Guard, JoinCall, KernelCall, KernelProgram, ViewCall
from tunefarm.compiler.kernels.verify_program import verify_program
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

EIGHT = TensorType(DType.F32, (8,))


def a_program() -> KernelProgram:
    return make_program(
        ["x"],
        ["v"],
        [call(add_kernel(8), "k", ("x", "w"), "y"), ViewCall("y", "v")],
        {"x": EIGHT, "w": EIGHT, "y": EIGHT, "v": TensorType(DType.F32, (2, 4))},
        {"w": np.zeros(8, np.float32)},
    )


def the_call(program: KernelProgram) -> KernelCall:
    first = program.calls[0]
    assert isinstance(first, KernelCall)
    return first


def test_valid_program_is_accepted() -> None:
    verify_program(a_program())


def test_value_read_before_it_is_computed_is_refused() -> None:
    program = a_program()
    with pytest.raises(VerifyError, match="reads y, which is not computed before"):
        verify_program(replace(program, calls=program.calls[::-1]))


def test_value_computed_twice_is_refused() -> None:
    program = a_program()
    with pytest.raises(VerifyError, match="y: is computed twice"):
        verify_program(replace(program, calls=(*program.calls, program.calls[0])))


def test_one_of_two_kernels_may_compute_a_value() -> None:
    program = a_program()
    types = {**program.types, "c": TensorType(DType.BOOL, ())}
    program = replace(program, types=types, inputs=("x", "c"))
    first, view = the_call(program), program.calls[1]
    yes, no = (replace(first, guards=(Guard("c", taken),)) for taken in (True, False))
    verify_program(replace(program, calls=(yes, no, view)))
    for second in (yes, first):
        with pytest.raises(VerifyError, match="y: is computed twice"):
            verify_program(replace(program, calls=(yes, second, view)))


def test_output_that_nothing_computes_is_refused() -> None:
    with pytest.raises(VerifyError, match="output z is never computed"):
        verify_program(replace(a_program(), outputs=("z",)))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (ViewCall("y", "v", 20), r"view of y: f32\[8\] as f32\[4\] from byte 20 on"),
        (ViewCall("y", "v", -4), "from byte -4 on"),
        (ViewCall("w", "v", 4), "view of w"),
        (JoinCall(("y",), "v"), r"joins f32\[8\] to f32\[4\]"),
        (JoinCall(("y", "z"), "v"), "reads z, which is not computed before"),
    ],
)
def test_memory_that_is_not_there_is_refused(call: ViewCall | JoinCall, problem: str) -> None:
    program = a_program()
    types = {**program.types, "v": TensorType(DType.F32, (4,))}
    accepted = replace(program, types=types, calls=(program.calls[0], ViewCall("y", "v", 16)))
    verify_program(accepted)
    with pytest.raises(VerifyError, match=problem):
        verify_program(replace(accepted, calls=(program.calls[0], call)))


def test_view_of_another_size_is_refused() -> None:
    program = a_program()
    types = {**program.types, "v": TensorType(DType.F32, (9,))}
    with pytest.raises(VerifyError, match=r"view of y: f32\[8\] as f32\[9\]"):
        verify_program(replace(program, types=types))


def test_call_with_too_few_inputs_is_refused() -> None:
    program = a_program()
    short = replace(the_call(program), inputs=("x",))
    with pytest.raises(VerifyError, match="takes 2 inputs, not 1"):
        verify_program(replace(program, calls=(short,)))


@pytest.mark.parametrize("name", ["x", "y"])
def test_call_with_a_value_of_another_type_is_refused(name: str) -> None:
    program = a_program()
    types = {**program.types, name: TensorType(DType.F64, (8,))}
    with pytest.raises(VerifyError, match=r"f64\[8\]"):
        verify_program(replace(program, types=types))
