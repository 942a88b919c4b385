"""Functions by name within runs of open sizes: tensors are dense and of each run's own sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import strategies as st
from onnx import helper

from tests.compiler.foreign_models import DOMAIN, alike, custom, first_alike, scaled_library
from tests.compiler.frontend.onnx_models import BOOL, INT64, model, node, tensor
from tests.compiler.runtime.c_models import cc, run
from tunefarm import compiler
from tunefarm.compiler import CFunction, load, register_function, unregister_function
from tunefarm.compiler.errors import ArtefactError, FunctionError, VerifyError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.artefact import write_artefact
from tunefarm.compiler.runtime.c_library.export_c import export_library
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import FunctionStep
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.verify_spec import verify_spec
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

Values = npt.NDArray[np.float32]
Shape = Sequence[Any]
BOUNDS = {"b": ("1..5",), "n": ("0..9",)}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for name in ("Made", "Scaled"):
        unregister_function(f"{DOMAIN}::{name}")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with the function `scaled`."""
    return scaled_library(tmp_path_factory.mktemp("library"))


def register(function: Callable[..., object], *shapes: Callable[[Shape], Shape]) -> None:
    """The function `Made`, whose results have these shapes of its first operand's."""

    def rule(
        operands: Sequence[TensorType | None], attributes: Mapping[str, Attribute]
    ) -> list[TensorType]:
        first = operands[0]
        assert first is not None
        return [TensorType(first.dtype, tuple(shape(first.shape))) for shape in shapes]

    register_function(f"{DOMAIN}::Made", function, rule, version="1", replace=True)


def built(nodes: Sequence[onnx.NodeProto], shape: Shape, **more: Any) -> Executable:
    """An executable of x, of this shape; the last node's outputs come out."""
    inputs = [tensor("x", tuple(shape)), *more.pop("inputs", ())]
    proto = model(nodes, inputs, list(nodes[-1].output), domains={DOMAIN: 1})
    bounds = {name: size for name, size in BOUNDS.items() if name in shape}
    return compiler.build(import_model_proto(proto, shapes=bounds), **more)


def drawn(shape: Sequence[int], seed: int = 0) -> Values:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def calls(executable: Executable) -> list[FunctionStep]:
    return [step for step in executable.spec.steps if isinstance(step, FunctionStep)]


def same(shape: Shape) -> Shape:
    return shape


MADE: dict[str, tuple[Callable[[Values], object], tuple[Callable[[Shape], Shape], ...]]] = {
    "same": (lambda x: x + np.float32(1), (same,)),
    "turned": (lambda x: np.ascontiguousarray(x.T), (lambda s: s[::-1],)),
    "joined": (lambda x: x.reshape(math.prod(x.shape[:-1]), x.shape[-1]),
               (lambda s: (math.prod(s[:-1]), s[-1]),)),
    "twice": (lambda x: np.concatenate([x, x], -1), (lambda s: (*s[:-1], 2 * s[-1]),)),
    "half": (lambda x: x[..., ::2], (lambda s: (*s[:-1], (s[-1] + 1) // 2),)),
    "more": (lambda x: np.pad(x, [(0, 0), (1, 2), *[(0, 0)] * (x.ndim - 2)]),
             (lambda s: (s[0], s[1] + 3, *s[2:]),)),
    "sum": (lambda x: np.asarray(x.sum(dtype=np.float32)), (lambda s: (),)),
    "several": (lambda x: (x.reshape(-1), -x), (lambda s: (np.prod(s),), same)),
}  # fmt: skip


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    st.lists(st.sampled_from(("b", "n", "n", 1, 2, 3)), min_size=2, max_size=4),
    st.sampled_from(sorted(MADE)),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=3, max_size=3),
)
def test_symbols_may_stand_anywhere(
    shape: list[str | int], kind: str, between: bool, sizes: list[tuple[int, int]]
) -> None:
    """Any rank, and any axes open: as NumPy, whether kernels or ports are round the call."""
    function, shapes = MADE[kind]
    register(function, *shapes)
    first = [node("Neg", "x", "a")] if between else []
    outputs = " ".join(f"y{i}" for i in range(len(shapes)))
    call = custom("Made", "a" if between else "x", outputs)
    executable = built([*first, call], shape)
    for b, n in sizes:
        at = {"b": b, "n": n}
        x = drawn([at[axis] if isinstance(axis, str) else axis for axis in shape])
        expected = function(-x if between else x)
        results = expected if isinstance(expected, tuple) else (expected,)
        found = executable.run({"x": x})
        for array, result in zip(found.values(), results, strict=True):
            np.testing.assert_array_equal(array, result)


def test_what_lies_dense_is_not_copied() -> None:
    register(lambda x: x, same)
    for shape, copied in ((("b", 7), False), ((1, "n", 4), False), (("b", "n"), True)):
        (call,) = calls(built([custom("Made", "x")], shape))
        assert (call.workspace is not None) == copied


def test_kernels_before_a_function_stop_at_what_it_reads() -> None:
    register(lambda x: x, same)
    first = node("Exp", "x", "a")
    executable = built([first, custom("Made", "a")], ("b", 64))
    (kernel,) = executable.spec.kernels
    assert len(executable.spec.operands[0]) == 3, kernel  # x, the sizes, and the result


def test_calls_in_threads_have_sizes_of_their_own() -> None:
    seen: set[tuple[int, ...]] = set()

    def noted(x: Values) -> Values:
        seen.add(x.shape)
        return x * np.float32(x.shape[1])

    register(noted, same)
    nodes = [node("Neg", "x", "a"), custom("Made", "a")]
    executable = built(nodes, ("b", "n", 3), threads=2)

    def check(number: int) -> None:
        x = drawn((1 + number % 5, number % 10, 3), number)
        np.testing.assert_array_equal(executable.run({"x": x})["y"], -x * x.shape[1])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(check, range(200)))
    assert len(seen) == 10


def test_a_size_that_the_model_computes_is_told() -> None:
    register(lambda x: 2 * x, same)
    executable = built([node("NonZero", "x", "i"), custom("Made", "i")], (3, 4))
    for x in (np.eye(3, 4, dtype=np.float32), np.zeros((3, 4), np.float32)):
        np.testing.assert_array_equal(executable.run({"x": x})["y"], 2 * np.stack(np.nonzero(x)))


def test_branches_and_loops_call_functions() -> None:
    count = 0

    def noted(x: Values) -> Values:
        nonlocal count
        count += 1
        return 2 * x

    register(noted, same)
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [custom("Made", "s", "t"), node("Identity", "go", "on")],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), value("s", 1, ["b", "n"])],
        [value("on", BOOL, []), value("t", 1, ["b", "n"])],
    )
    loop = node("Loop", "steps _ x", "l", body=body)
    branches = {
        name: helper.make_graph([item], name, [], [value(item.output[0], 1, ["b", "n"])])
        for name, item in (
            ("then_branch", custom("Made", "l", "u")),
            ("else_branch", node("Neg", "l", "v")),
        )
    }
    choice = node("If", "c", **branches)
    more = [tensor("steps", (), INT64), tensor("c", (), BOOL)]
    executable = built([loop, choice], ("b", "n"), inputs=more)
    x = drawn((3, 7))
    for steps, taken in ((0, True), (4, False), (5, True)):
        count = 0
        found = executable.run({"x": x, "steps": np.int64(steps), "c": np.bool_(taken)})["y"]
        np.testing.assert_array_equal(found, 2**steps * (2 * x if taken else -x))
        assert count == steps + taken


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda x: x[:, 1:], r"its result 0 is float32\[3, 6\].*type rule gives float32\[3, 7\]"),
        (
            lambda x: x[1],
            r"its result 0 is float32\[7\], where its type rule gives float32\[3, 7\]",
        ),
        (lambda x: (x, x), "it returned 2 results instead of 1"),
    ],
)
def test_a_failure_says_what_the_function_was_called_with(function: Any, reason: str) -> None:
    register(function, same)
    nodes = [node("Abs", "x", "a"), custom("Made", "a")]
    executable, feeds = built(nodes, ("b", "n")), {"x": drawn((3, 7))}
    told = rf"my\.domain::Made failed in node 'the node', called with f32\[3, 7\]: .*({reason})"
    with pytest.raises(FunctionError, match=told):
        executable.run(feeds)
    with pytest.raises(FunctionError, match=told):
        executable.bind(feeds).run()
    with pytest.raises(FunctionError, match=told):
        executable.profile(feeds, repeat=1)


def test_a_profile_gives_the_same() -> None:
    register(lambda x: (x.reshape(-1), x + np.float32(1)), lambda s: (s[0] * s[1],), same)
    executable = built([node("Abs", "x", "a"), custom("Made", "a", "y z")], ("b", "n"))
    for shape in ((1, 1), (4, 6), (5, 9)):
        feeds = {"x": drawn(shape)}
        profiled = executable.profile(feeds, repeat=1).outputs
        for name, array in executable.run(feeds).items():
            np.testing.assert_array_equal(profiled[name], array)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"axes": ((), None)}, "has other axes"),
        ({"axes": ((((~99, 5),),), (((~0, 5),),))}, "has no 100 sizes"),
        ({"axes": ((((6, 5),),), (((~0, 5),),))}, "there is more of"),
        ({"axes": ((((~0, 5),),),)}, "its axes are not those of its types"),
        ({"sizes": None}, "its axes are not those of its types"),
        ({"axes": ()}, "it has sizes of nothing"),
        ({"workspace": 0}, "it has 0 bytes of dense copies"),
    ],
)
def test_a_call_that_nobody_could_make_is_refused(changed: dict[str, Any], reason: str) -> None:
    register(lambda x: x, same)
    spec = built([custom("Made", "x")], ("b",)).spec
    (call,) = spec.steps
    assert isinstance(call, FunctionStep)
    verify_spec(spec)
    with pytest.raises(VerifyError, match=reason):
        verify_spec(replace(spec, steps=(replace(call, **changed),)))


def test_artefacts_of_several_programs_list_functions_and_refuse_others(tmp_path: Path) -> None:
    register(lambda x: x + np.float32(x.shape[1]), same)
    specs = []
    for low, high in ((1, 4), (5, 9)):
        call = custom("Made", "x")
        proto = model([call], [tensor("x", (2, "n"))], domains={DOMAIN: 1})
        graph = import_model_proto(proto, shapes={"n": (f"{low}..{high}",)})
        specs.append(compile_model(graph, guards=[SizeGuard("n", "x", 1, low, high)]).spec)
    path = tmp_path / "sizes.tuned"
    write_artefact.save(specs[0], path, specs[1:])
    executable = load(path)
    for size in (1, 4, 5, 9):
        x = drawn((2, size))
        np.testing.assert_array_equal(executable.run({"x": x})["y"], x + size)
    unregister_function(f"{DOMAIN}::Made")
    with pytest.raises(ArtefactError, match=r"my.domain::Made .*which is not registered"):
        load(path)


PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "scaler.h"

int main(void)
{
    float x[20], y[20];
    struct scaler_io io = {.x = x, .y = y};
    for (int i = 0; i < 20; i++)
        x[i] = i;
    void *workspace = aligned_alloc(SCALER_ALIGNMENT, scaler_workspace_bytes(NULL));
    for (int rows = 1; rows <= 5; rows += 2) {
        io.x_shape[0] = rows;
        io.x_shape[1] = 4;
        int code = scaler_run(&io, workspace);
        printf("%d %s %g\n", code, scaler_error(code), y[rows * 4 - 1]);
    }
    return 0;
}
"""


@pytest.mark.parametrize("fail", [0, 1])
def test_c_library_calls_with_true_sizes_and_names_them(
    library: Path, tmp_path: Path, fail: int
) -> None:
    context = np.array([2.5], np.float32).tobytes()
    rule = alike if fail else first_alike
    register_function(f"{DOMAIN}::Scaled", CFunction(library, "scaled", context), rule, version="1")
    given: dict[str, Any] = {"fail": 1} if fail else {}
    call = custom("Scaled", "x _", **given)
    proto = model([call], [tensor("x", ("b", "n"))], domains={DOMAIN: 1})
    spec = compile_model(import_model_proto(proto, shapes=BOUNDS)).spec
    (tmp_path / "main.c").write_text(PROGRAM)
    export_library(spec, tmp_path, "scaler")
    rest = (str(library), f"-Wl,-rpath,{library.parent}", "-lm", "-o", "main")
    cc(tmp_path, "main.c", "-L.", "-lscaler", "-Wl,-rpath,$ORIGIN", *rest)
    lines = run(tmp_path, "./main").splitlines()
    if not fail:
        assert lines == [f"0 no error {2.5 * (4 * rows - 1):g}" for rows in (1, 3, 5)]
        return
    for line, rows in zip(lines, (1, 3, 5), strict=True):
        told = f"failed in node 'the node', called with [{rows}, 4], []: code 7 it was told to fail"
        assert told in line
