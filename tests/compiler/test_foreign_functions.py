"""Functions by name: bound at import, called inside the run, refused and reported by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from tests.compiler.foreign_models import DOMAIN, alike, custom, first_alike, scaled_library
from tests.compiler.frontend.onnx_models import BOOL, INT64, model, node, tensor
from tests.compiler.runtime.c_models import cc, run
from tunefarm.compiler import (
    CFunction,
    build,
    load,
    register_function,
    unregister_function,
)
from tunefarm.compiler.errors import (
    ArtefactError,
    ExportError,
    FunctionError,
    ImportModelError,
    SettingsError,
    UnsupportedOperatorError,
)
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.artefact.file_header import json_text
from tunefarm.compiler.runtime.artefact.manifest import manifest_to_json
from tunefarm.compiler.runtime.c_library.export_c import export_library, export_object
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType

Values = npt.NDArray[np.float32]
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "scaler.h"

int main(void)
{
    float x[6] = {1, 2, 3, 4, 5, 6}, b[1] = {10}, y[6], s[1];
    struct scaler_io io = {.x = x, .b = b, .y = y, .s = s};
    void *workspace = aligned_alloc(SCALER_ALIGNMENT, scaler_workspace_bytes());
    int code = scaler_run(&io, workspace);
    printf("%d %s %g %g\n", code, scaler_error(code), y[5], s[0]);
    return 0;
}
"""

SIZED_PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "scaler.h"

int main(void)
{
    float x[12] = {1, 2, 3, 4, 5, 6}, b[1] = {10}, y[12];
    struct scaler_io io = {.x = x, .b = b, .y = y, .x_shape = {2, 3}};
    void *workspace = aligned_alloc(SCALER_ALIGNMENT, scaler_workspace_bytes(NULL));
    for (int rows = 2; rows <= 6; rows += 2) {
        io.x_shape[0] = rows;
        int code = scaler_run(&io, workspace);
        printf("%d %s %g [%d, %d]\n", code, scaler_error(code), y[5], (int)io.y_shape[0],
               (int)io.y_shape[1]);
    }
    return 0;
}
"""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for name in ("Scale", "Scaled", "Parts", "Tokens"):
        unregister_function(f"{DOMAIN}::{name}")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with the function `scaled`."""
    return scaled_library(tmp_path_factory.mktemp("library"))


def model_of(*nodes: onnx.NodeProto, shape: tuple[int, ...] = (2, 3)) -> onnx.ModelProto:
    """x and b go in; the last node's outputs come out."""
    given = [tensor("x", shape), tensor("b", (1,))]
    return model(nodes, given, [name for name in nodes[-1].output if name], domains={DOMAIN: 1})


def scale(x: Values, b: Values | None = None, *, factor: float = 2.0) -> Values:
    return np.float32(factor) * x + (0 if b is None else b)


X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
B = np.array([10], np.float32)
FEEDS: dict[str, object] = {"x": X, "b": B}


def test_python_function_runs_between_kernels(tmp_path: Path) -> None:
    register_function(f"{DOMAIN}::Scale", scale, first_alike, version="1")
    before = node("Add", "x b", "a")
    call = custom("Scale", "a b", "c", factor=3.0)
    after = node("Relu", "c")
    executable = build(import_model_proto(model_of(before, call, after)))
    expected = 3 * (X + B) + B
    np.testing.assert_array_equal(executable.run(FEEDS)["y"], expected)
    executable.save(tmp_path / "scaled.tuned")
    again = load(tmp_path / "scaled.tuned")
    np.testing.assert_array_equal(again.run(FEEDS)["y"], expected)
    bound = again.bind(FEEDS)
    bound.run()
    np.testing.assert_array_equal(bound.outputs["y"], expected)
    names = [step.name for step in again.profile(FEEDS, repeat=1).steps]
    assert f"{DOMAIN}::Scale" in names
    np.testing.assert_array_equal(again.profile(FEEDS, repeat=1).outputs["y"], expected)


def test_c_function_has_context_attributes_and_several_results(library: Path) -> None:
    context = np.array([2.5], np.float32).tobytes()
    register_function(
        f"{DOMAIN}::Scaled", CFunction(library, "scaled", context), alike, version="1"
    )
    call = custom("Scaled", "x b", "y s")
    found = build(import_model_proto(model_of(call))).run(FEEDS)
    np.testing.assert_allclose(found["y"], 2.5 * X + 10)
    np.testing.assert_allclose(found["s"], (2.5 * X + 10).sum())
    without = custom("Scaled", "x _")
    np.testing.assert_allclose(
        build(import_model_proto(model_of(without))).run(FEEDS)["y"], 2.5 * X
    )
    only_sum = custom("Scaled", "x _", "_ s")
    np.testing.assert_allclose(
        build(import_model_proto(model_of(only_sum))).run(FEEDS)["s"], (2.5 * X).sum()
    )


def test_failing_c_function_says_why_and_where(library: Path) -> None:
    context = np.array([1], np.float32).tobytes()
    register_function(
        f"{DOMAIN}::Scaled", CFunction(library, "scaled", context), first_alike, version="1"
    )
    good = custom("Scaled", "x _", name="good")
    bad = custom("Scaled", "y _", "z", name="bad", fail=1)
    executable = build(import_model_proto(model_of(good, bad)))
    reason = r"my.domain::Scaled failed in node 'bad': it was told to fail, with rank 2"
    with pytest.raises(FunctionError, match=reason):
        executable.run(FEEDS)
    with pytest.raises(FunctionError, match=reason):
        executable.bind(FEEDS).run()
    with pytest.raises(FunctionError, match=reason):
        executable.profile(FEEDS, repeat=1)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, b: 1 / 0, "ZeroDivisionError: division by zero"),
        (
            lambda x, b: x[0],
            r"its result 0 is float32\[3\], where its type rule gives float32\[2, ",
        ),
        (lambda x, b: x.astype(np.float64), r"its result 0 is float64\[2, 3\]"),
        (lambda x, b: (x, x), "it returned 2 results instead of 1"),
        (lambda x: x, "takes 1 positional argument but 2 were given"),
        (lambda x, b: x.fill(0), "read-only"),
    ],
)
def test_failing_python_function_is_named(function: Any, reason: str) -> None:
    register_function(f"{DOMAIN}::Scale", function, first_alike, version="1")
    executable = build(import_model_proto(model_of(custom("Scale", "x b"))))
    expected = rf"function my\.domain::Scale failed in node 'the node': .*{reason}"
    with pytest.raises(FunctionError, match=expected):
        executable.run(FEEDS)


def test_interrupt_in_a_function_stays_an_interrupt() -> None:
    def interrupted(x: Array, b: Array) -> Array:
        raise KeyboardInterrupt

    register_function(f"{DOMAIN}::Scale", interrupted, first_alike, version="1")
    executable = build(import_model_proto(model_of(custom("Scale", "x b"))))
    with pytest.raises(KeyboardInterrupt):
        executable.run(FEEDS)


def test_runs_in_threads_and_several_executables_keep_apart() -> None:
    """What one thread's function raises is raised by that thread's run."""

    def picky(x: Values, *, limit: int) -> Values:
        if x.reshape(-1)[0].item() > limit:
            raise ValueError(f"{x.reshape(-1)[0]} is more than {limit}")
        return x + np.float32(1)

    register_function(f"{DOMAIN}::Scale", picky, first_alike, version="1")
    executables = [
        build(import_model_proto(model_of(custom("Scale", "x", limit=limit)))) for limit in (3, 5)
    ]

    def run_with(number: int) -> str:
        feeds = {"x": np.full((2, 3), number, np.float32), "b": B}
        texts = []
        for executable in executables:
            try:
                texts.append(str(executable.run(feeds)["y"][0, 0]))
            except FunctionError as error:
                texts.append(str(error).rsplit(": ", 1)[1])
        return " | ".join(texts)

    def expected(number: int) -> str:
        return " | ".join(
            str(np.float32(number + 1)) if number <= limit else f"{number}.0 is more than {limit}"
            for limit in (3, 5)
        )

    with ThreadPoolExecutor(4) as threads:
        numbers = [number % 8 for number in range(64)]
        assert list(threads.map(run_with, numbers)) == list(map(expected, numbers))


def test_nothing_is_called_while_building() -> None:
    """Not for constants either: a function that ends the process would end the build."""
    called = []

    def tokens(x: Array) -> Array:
        called.append(x)
        return x.astype(np.int64)

    def types(operands: Sequence[Any], attributes: Mapping[str, Attribute]) -> list[TensorType]:
        return [TensorType(DType.I64, operands[0].shape)]

    register_function(f"{DOMAIN}::Tokens", tokens, types, version="1")
    constant = np.array([1, 2, 3], np.float32)
    proto = model(
        [custom("Tokens", "c", "t"), node("Add", "t x")],
        [tensor("x", (3,), INT64)],
        constants={"c": constant},
        domains={DOMAIN: 1},
    )
    executable = build(import_model_proto(proto))
    assert not called
    found = executable.run({"x": np.array([1, 1, 1])})["y"]
    np.testing.assert_array_equal(found, [2, 3, 4])
    assert len(called) == 1


def test_function_of_a_branch_that_is_not_taken_is_not_called() -> None:
    called = []

    def noted(x: Values) -> Values:
        called.append(x.copy())
        return x + np.float32(1)

    register_function(f"{DOMAIN}::Scale", noted, first_alike, version="1")
    branches = {
        name: helper.make_graph([nodes], name, [], [tensor(nodes.output[0], (2, 3))])
        for name, nodes in (
            ("then_branch", custom("Scale", "x", "t")),
            ("else_branch", node("Neg", "x", "e")),
        )
    }
    proto = model(
        [node("If", "condition", **branches)],
        [tensor("x", (2, 3)), tensor("condition", (), BOOL)],
        domains={DOMAIN: 1},
    )
    executable = build(import_model_proto(proto))
    np.testing.assert_array_equal(executable.run({"x": X, "condition": np.False_})["y"], -X)
    assert not called
    np.testing.assert_array_equal(executable.run({"x": X, "condition": np.True_})["y"], X + 1)
    assert len(called) == 1


def test_results_may_be_outputs_parts_and_unread() -> None:
    """Of four results one is the model's output, two are joined, and one is not read."""

    def parts(x: Values) -> list[Values]:
        return [x + np.float32(number) for number in range(4)]

    def types(operands: Sequence[Any], attributes: Mapping[str, Attribute]) -> list[TensorType]:
        return [operands[0]] * 4

    register_function(f"{DOMAIN}::Parts", parts, types, version="1")
    call = custom("Parts", "x", "p q _ r")
    join = node("Concat", "q r b2", axis=0)
    tail = node("Reshape", "b two", "b1")
    wide = node("Expand", "b1 row", "b2")
    proto = model(
        [call, tail, wide, join],
        [tensor("x", (2, 3)), tensor("b", (1,))],
        ["p", "y"],
        {"two": np.array([1, 1]), "row": np.array([1, 3])},
        domains={DOMAIN: 1},
    )
    found = build(import_model_proto(proto)).run(FEEDS)
    np.testing.assert_array_equal(found["p"], X)
    np.testing.assert_array_equal(found["y"], np.concatenate([X + 1, X + 3, [[10] * 3]]))


@pytest.mark.parametrize("numerics", ["default", "bf16", "strict"])
def test_types_are_those_of_the_type_rule_whatever_the_numerics(numerics: str) -> None:
    """What is between kernels may be stored narrower, what a function takes may not."""
    seen: list[np.dtype[Any]] = []

    def look(x: Array) -> Array:
        seen.append(x.dtype)
        return x

    register_function(f"{DOMAIN}::Scale", look, first_alike, version="1")
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    proto = model(
        [node("MatMul", "x w", "a"), custom("Scale", "a", "c"), node("MatMul", "c w")],
        [tensor("x", (64, 64))],
        constants={"w": weight},
        domains={DOMAIN: 1},
    )
    executable = build(import_model_proto(proto), numerics=numerics)
    found = executable.run({"x": weight})["y"]
    np.testing.assert_allclose(found, weight @ weight @ weight, rtol=0.2, atol=30)
    assert seen == [np.dtype(np.float32)]


def test_missing_function_and_other_version_are_refused_at_load(tmp_path: Path) -> None:
    register_function(f"{DOMAIN}::Scale", scale, first_alike, version="1")
    file = tmp_path / "scaled.tuned"
    build(import_model_proto(model_of(custom("Scale", "x b")))).save(file)
    register_function(f"{DOMAIN}::Scale", scale, first_alike, version="2", replace=True)
    with pytest.raises(ArtefactError, match=r"version 1 of the function .*, and version 2 is reg"):
        load(file)
    unregister_function(f"{DOMAIN}::Scale")
    register_function(f"{DOMAIN}::Scaled", scale, first_alike, version="1")
    with pytest.raises(ArtefactError, match=r"my.domain::Scale .*which is not registered") as error:
        load(file)
    assert error.value.hint == "did you mean my.domain::Scaled?"


def test_missing_library_and_symbol_are_refused_at_load(library: Path) -> None:
    for given, reason in (
        (CFunction(library.with_name("nowhere.so"), "scaled"), "the library cannot be loaded"),
        (CFunction(library, "shrunk"), "has no symbol shrunk"),
    ):
        register_function(f"{DOMAIN}::Scaled", given, first_alike, version="1", replace=True)
        with pytest.raises(ArtefactError, match=f"my.domain::Scaled: .*{reason}"):
            build(import_model_proto(model_of(custom("Scaled", "x"))))


def test_model_that_calls_no_function_has_no_table_of_them() -> None:
    spec = compile_model(import_model_proto(model([node("Relu", "x")], [tensor("x", (3,))]))).spec
    assert spec.functions == ()
    assert b"functions" not in json_text(manifest_to_json(spec, ()))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("Scale", scale, alike), "does not name an operator"),
        (("a::b::c", scale, alike), "does not name an operator"),
        (("my.domain::Scale", 3, alike), "must be callable"),
        (("my.domain::Scale", scale, None), "must be callable"),
        (
            ("my.domain::Scale", CFunction("a.so", "no symbol"), alike),
            "not the name of a C function",
        ),
    ],
)
def test_bad_registration_is_refused(given: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        register_function(*given, version="1")


def test_name_is_taken_once() -> None:
    register_function(f"{DOMAIN}::Scale", scale, alike, version="1")
    with pytest.raises(SettingsError, match="registered already"):
        register_function(f"{DOMAIN}::Scale", scale, alike, version="1")


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        (lambda operands, attributes: operands[7], "type rule of .* failed: IndexError"),
        (lambda operands, attributes: [], r"type rule of .* gives \[\]"),
        (lambda operands, attributes: ["f32"], "type rule of .* gives"),
        (lambda operands, attributes: [operands[0]], "2 outputs, and function .* gives 1"),
    ],
)
def test_bad_type_rule_is_named(types: Any, reason: str) -> None:
    register_function(f"{DOMAIN}::Scale", scale, types, version="1")
    with pytest.raises(ImportModelError, match=f"Scale node 'the node': .*{reason}"):
        import_model_proto(model_of(custom("Scale", "x", "y z")))


def test_operator_that_nobody_registered_is_refused_with_a_hint() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"my.domain.Scale .*register_function"):
        import_model_proto(model_of(custom("Scale", "x")))


def test_c_library_takes_functions_from_what_it_is_linked_with(
    library: Path, tmp_path: Path
) -> None:
    context = np.array([2], np.float32).tobytes()
    register_function(
        f"{DOMAIN}::Scaled", CFunction(library, "scaled", context), alike, version="1"
    )
    (tmp_path / "main.c").write_text(PROGRAM)
    for fail, expected in ((0, "0 no error 22 102\n"), (1, "4 function my.domain::Scaled failed")):
        given = {"fail": 1} if fail else {}
        spec = compile_model(
            import_model_proto(model_of(custom("Scaled", "x b", "y s", **given)))
        ).spec
        export_library(spec, tmp_path, "scaler")
        export_object(spec, tmp_path / "scaler.o", "scaler")
        rest = (str(library), f"-Wl,-rpath,{library.parent}", "-lm", "-o")
        cc(tmp_path, "main.c", "-L.", "-lscaler", "-Wl,-rpath,$ORIGIN", *rest, "shared")
        cc(tmp_path, "main.c", "scaler.o", *rest, "static")
        for program in ("./shared", "./static"):
            assert run(tmp_path, program).startswith(expected)


def test_programs_for_sizes_call_functions_and_name_those_that_fail(
    library: Path, tmp_path: Path
) -> None:
    context = np.array([2.5], np.float32).tobytes()
    register_function(
        f"{DOMAIN}::Scaled", CFunction(library, "scaled", context), first_alike, version="1"
    )
    fine = custom("Scaled", "x b")
    failing = (custom("Scaled", "x b", "z"), custom("Scaled", "z b", fail=1))
    specs = [
        compile_model(
            import_model_proto(model_of(*nodes, shape=(rows, 3))),
            guards=[SizeGuard("rows", "x", 0, rows, rows)],
        ).spec
        for rows, nodes in ((4, failing), (2, (fine,)))
    ]
    several = Executable(specs[0], others=specs[1:])
    np.testing.assert_allclose(several.run(FEEDS)["y"], 2.5 * X + 10)
    with pytest.raises(FunctionError, match=r"Scaled failed in node 'the node': it was told to"):
        several.run({"x": np.ones((4, 3), np.float32), "b": B})
    (tmp_path / "main.c").write_text(SIZED_PROGRAM)
    export_library(specs[0], tmp_path, "scaler", others=specs[1:])
    rest = (str(library), f"-Wl,-rpath,{library.parent}", "-lm", "-o", "main")
    cc(tmp_path, "main.c", "-L.", "-lscaler", "-Wl,-rpath,$ORIGIN", *rest)
    good, bad, none = run(tmp_path, "./main").splitlines()
    assert good == "0 no error 25 [2, 3]"
    assert bad.startswith("4 function my.domain::Scaled failed in node 'the node': code 7 it was")
    assert "no program for these sizes: it was built for rows=4; rows=2" in none


def test_c_library_has_no_python_functions(tmp_path: Path) -> None:
    register_function(f"{DOMAIN}::Scale", scale, first_alike, version="1")
    spec = compile_model(import_model_proto(model_of(custom("Scale", "x b")))).spec
    with pytest.raises(ExportError, match=r"my\.domain::Scale, which is Python"):
        export_library(spec, tmp_path, "scaler")
