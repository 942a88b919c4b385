"""C libraries of models with run-time sizes: shapes in and out, results, errors, the example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model, node, tensor
from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runnable_targets import unlike_any
from tests.compiler.runtime.c_models import STRICT, Library, cc, compile_example, run
from tests.compiler.runtime.sized_graphs import (
    cache_graph,
    counted_graph,
    joined_graph,
    part_graph,
    rows_graph,
    squeezed_programs,
    taken_graph,
)
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.c_library.export_c import export_library, export_object
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.target import Target, baseline_target, host_target
from tunefarm.compiler.types.extents import Shapes
from tunefarm.compiler.types.tensor_type import Array

RNG = np.random.default_rng(5)


def drawn(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def library_of(programs: Graph | Sequence[ExecutableSpec], folder: Path) -> Library:
    """The library of a graph, or of several programs."""
    specs = [compile_model(programs).spec] if isinstance(programs, Graph) else programs
    return Library(export_library(specs[0], folder, "sized", others=specs[1:])[1], "sized", *specs)


@pytest.mark.parametrize(
    ("graph", "calls"),
    [
        (rows_graph(), [{"x": drawn(*s, 5)} for s in ((1, 0), (2, 3), (4, 7), (3, 1))]),
        (joined_graph(), [{"x": drawn(*s, 5)} for s in ((1, 0), (2, 3), (4, 7))]),
        (taken_graph(), [{"x": drawn(6), "count": np.array([0, n])} for n in (0, 4, 6)]),
        (counted_graph(), [{"x": drawn(8), "n": np.array([n])} for n in (0, 3, 7)]),
        (cache_graph(), [{"past": drawn(2, n, 4), "new": drawn(2, 1, 4)} for n in (0, 9, 30)]),
    ],
    ids=["rows", "joined", "taken", "counted", "cache"],
)
def test_library_gives_what_the_executable_gives(
    graph: Graph, calls: list[Mapping[str, Array]], tmp_path: Path
) -> None:
    library, executable = library_of(graph, tmp_path), compiler.build(graph)
    for inputs in calls:
        found = library.run(inputs)
        for name, array in executable.run(inputs).items():
            np.testing.assert_array_equal(found[name], array)


def image_graph() -> Graph:
    """An image that kernels read where the caller has it: its places have 4 KB and more."""
    relu = node("Relu", "x", "a"), node("Neg", "x", "b"), node("Add", "a b")
    shapes: Shapes = {"n": ("1..2",), "h": ("1..24",), "w": ("1..24",)}
    return import_model_proto(model(relu, [tensor("x", ["n", 3, "h", "w"])]), shapes)


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_library_reads_dense_arguments_at_any_address(offset: int, tmp_path: Path) -> None:
    spec = compile_model(image_graph()).spec
    assert all(port.read_dense for port in spec.signature.inputs)
    library = library_of([spec], tmp_path)
    for shape in ((1, 3, 1, 1), (2, 3, 24, 5), (1, 3, 17, 24), (2, 3, 24, 24)):
        x = drawn(*shape)
        np.testing.assert_array_equal(library.run({"x": x}, offset)["y"], np.maximum(x, 0) - x)


def test_sizes_that_do_not_fit_are_refused_with_a_text(tmp_path: Path) -> None:
    library = library_of(rows_graph(), tmp_path)
    for shape, text in (
        ((5, 1, 5), "batch is out of bounds in axis 0 of input 'x': 1 to 4"),
        ((0, 1, 5), "batch is out of bounds in axis 0 of input 'x': 1 to 4"),
        ((1, 8, 5), "length is out of bounds in axis 1 of input 'x': 0 to 7"),
        ((1, 1, 6), "the shape of input 'x' is not the f32[batch:1..4, length:0..7, 5]"),
    ):
        with pytest.raises(ValueError) as error:
            library.run({"x": drawn(*shape)})
        assert str(error.value).startswith(text)


def test_sizes_and_conditions_that_are_computed_are_checked(tmp_path: Path) -> None:
    library = library_of(counted_graph(), tmp_path)
    with pytest.raises(ValueError, match="the computed size found is out of bounds: 0 to 7"):
        library.run({"x": drawn(8), "n": np.array([8])})
    with pytest.raises(ValueError, match=r"it must not be negative \('n' says so\)"):
        library.run({"x": drawn(8), "n": np.array([-1])})


def test_example_runs_at_the_sizes_that_it_is_given(tmp_path: Path) -> None:
    spec = compile_model(rows_graph()).spec
    export_library(spec, tmp_path, "sized")
    compile_example(tmp_path, "sized")
    printed = run(tmp_path, "./sized_example", "2", "3")
    assert "relu_0 [2, 3, 5]:" in printed and "reduce_sum_2 [2, 5]:" in printed
    assert "[3, 4, 5]:" in run(tmp_path, "./sized_example")
    header, source = "sized.h", "sized_example.c"
    assert "int64_t x_shape[3];" in (tmp_path / header).read_text()
    export_object(spec, tmp_path / "sized.o", "sized")
    cc(tmp_path, *STRICT, source, "sized.o", "-pthread", "-lm", "-o", "whole")
    assert run(tmp_path, "./whole", "2", "3") == printed


def test_example_leaves_no_memory_behind_where_sizes_are_refused(tmp_path: Path) -> None:
    export_library(compile_model(rows_graph()).spec, tmp_path, "sized")
    sanitised = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    compile_example(tmp_path, "sized", *sanitised)
    run(tmp_path, "./sized_example", "2", "3")
    refused = run(tmp_path, "sh", "-c", "./sized_example 9 3 2>&1 || test $? = 1")
    assert refused.splitlines() == [
        "sized_run: batch is out of bounds in axis 0 of input 'x': 1 to 4"
    ]
    (tmp_path / "x.bin").write_bytes(bytes(9 * 7 * 5 * 4))
    refused = run(tmp_path, "sh", "-c", "./sized_example 9 7 x.bin 2>&1 || test $? = 1")
    assert refused == "x.bin: not a file of 1260 bytes, or more than 560\n"


def test_example_of_a_model_with_conditions_alone_takes_no_sizes(tmp_path: Path) -> None:
    form = '<ir_version: 8, opset_import: ["" : 18]>'
    loop = (
        "g (float[4] x, bool go) => (float[4] y) { y = Loop (, go, x) <body = "
        "b (int64 i, bool c, float[4] s) => (bool d, float[4] t) { d = Identity (c) t = Neg (s) }"
        "> }"
    )
    graph = import_model_proto(onnx.parser.parse_model(form + loop))
    assert not graph.is_fixed and not graph.signature.sources
    export_library(compile_model(graph).spec, tmp_path, "loop")
    compile_example(tmp_path, "loop")  # warnings are errors
    assert run(tmp_path, "./loop_example").startswith("y [4]: ")


PARTS = ((1, 1), (4, 6), (9, 20))


def parts(target: Target | None = None) -> list[ExecutableSpec]:
    found = []
    for ends in PARTS:
        guards = [SizeGuard("length", "x", 1, *ends)]
        graph = part_graph(*ends)
        found.append(compile_model(graph, target=target, guards=guards).spec)
    return found


def test_library_of_values_and_ranges_gives_what_the_executable_gives(tmp_path: Path) -> None:
    specs = parts()
    library, executable = library_of(specs, tmp_path), Executable(specs[0], others=specs[1:])
    sizes = {}
    for length in (1, 4, 6, 9, 13, 20):
        x = drawn(2, length, 5)
        found = library.run({"x": x})
        for name, array in executable.run({"x": x}).items():
            np.testing.assert_array_equal(found[name], array)
        sizes[length] = library.bytes
    assert sizes[1] < sizes[6] < sizes[20] == library.workspace.size
    for length in (0, 2, 7, 21):
        with pytest.raises(ValueError, match=r"no program for these sizes: it was .* length=1; "):
            library.run({"x": drawn(2, length, 5)})
    for length in (1, 5):
        with pytest.raises(ValueError, match=r"shapes? of"):
            library.run({"x": drawn(3, length, 5)})
    header = (tmp_path / "sized.h").read_text()
    assert "f32[2, length:1|4..6|9..20, 5], at most 800 bytes" in header
    compile_example(tmp_path, "sized")
    assert "y [2, 6, 5]:" in run(tmp_path, "./sized_example", "6")


def test_library_for_several_cpus_chooses_by_sizes_among_those_for_this_one(
    tmp_path: Path,
) -> None:
    host = host_target()
    newer = unlike_any(host)
    wrong = [
        replace(spec, target=newer, guards=own.guards)
        for spec, own in zip(reversed(parts()), parts(), strict=True)
    ]
    specs = [*wrong, *parts(baseline_target(host))]
    library = library_of(specs, tmp_path)
    for length in (1, 5, 20):
        x = drawn(2, length, 5)
        np.testing.assert_array_equal(library.run({"x": x})["y"], np.maximum(x, 0))
    whole = compile_model(rows_graph()).spec
    portable = compile_model(rows_graph(), target=baseline_target(host)).spec
    both = library_of([replace(whole, target=newer), portable], tmp_path / "whole")
    x = drawn(3, 4, 5)
    assert both.run({"x": x}).keys() == Executable(portable).run({"x": x}).keys()
    with pytest.raises(ValueError, match="batch is out of bounds in axis 0 of input 'x': 1 to 4"):
        both.run({"x": drawn(5, 1, 5)})


def test_ranks_that_sizes_decide_stand_in_the_struct(tmp_path: Path) -> None:
    specs = squeezed_programs()
    library, executable = library_of(specs, tmp_path), Executable(specs[0], others=specs[1:])
    for rows in (1, 2, 5):
        inputs = {"x": drawn(rows, 3), "keep": np.array([True, False, True])}
        found = library.run(inputs)
        for name, array in executable.run(inputs).items():
            assert found[name].shape == array.shape
            np.testing.assert_array_equal(found[name], array)
    header = (tmp_path / "sized.h").read_text()
    assert "int64_t y_rank;" in header and "int64_t z_rank;" in header
    assert "sums_rank" not in header
    compile_example(tmp_path, "sized")
    for batch, shape in (("1", "3"), ("2", "2, 3")):
        assert f"y [{shape}]:" in run(tmp_path, "./sized_example", batch)


def test_shapes_that_all_programs_have_are_no_part_of_the_struct(tmp_path: Path) -> None:
    specs = []
    for rows in (1, 4):
        maker = GraphMaker()
        x, y = maker.input(rows, 3), maker.input(3)
        graph = maker.graph(maker.node("add", x, y), maker.node("relu", y))
        guard = SizeGuard("batch", "x0", 0, rows, rows)
        specs.append(compile_model(graph, guards=[guard]).spec)
    library, executable = library_of(specs, tmp_path), Executable(specs[0], others=specs[1:])
    for rows in (1, 4):
        inputs = {"x0": drawn(rows, 3), "x1": drawn(3)}
        for name, array in executable.run(inputs).items():
            np.testing.assert_array_equal(library.run(inputs)[name], array)
    assert "x1_shape" not in (tmp_path / "sized.h").read_text()
