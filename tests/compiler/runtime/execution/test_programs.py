"""One artefact of several programs: which one runs a call, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.edited_artefacts import rewrite_manifest
from tests.compiler.runtime.hand_kernels import sealed
from tests.compiler.runtime.sized_graphs import (
    counted_graph,
    part_graph,
    rows_graph,
    squeezed_model,
    squeezed_programs,
    taken_graph,
)
from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.errors import ArtefactError, InputError, VerifyError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.artefact import file_header, write_artefact
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.loaded_program import LoadedProgram, SharedKernels
from tunefarm.compiler.runtime.sizes.model_ports import ModelPorts
from tunefarm.compiler.runtime.sizes.size_chain import CHOOSE_SYMBOL as CHOOSE
from tunefarm.compiler.runtime.sizes.size_chain import RUN_SYMBOL as RUN
from tunefarm.compiler.runtime.sizes.size_chain import chain_ir
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.session.inference_session import InferenceSession
from tunefarm.compiler.target import Target, baseline_target, host_target

SIZES = (1, 4, 16)


def model(rows: int) -> Graph:
    """Rows times one and the same matrix, by the names x0 and matmul_0."""
    maker = GraphMaker()
    weights = maker.constant(np.random.default_rng(3).standard_normal((64, 48), np.float32))
    return maker.graph(maker.node("matmul", maker.input(rows, 64), weights))


def built(rows: int, target: Target | None = None, *, fallback: bool = False) -> ExecutableSpec:
    guard = SizeGuard("batch", "x0", 0, rows, rows)
    return compile_model(model(rows), target=target, guards=[guard], fallback=fallback).spec


@pytest.fixture(scope="module")
def specs() -> list[ExecutableSpec]:
    return [built(rows) for rows in SIZES]


@pytest.fixture
def path(specs: list[ExecutableSpec], tmp_path: Path) -> Path:
    path = tmp_path / "sizes.tuned"
    write_artefact.save(specs[0], path, specs[1:])
    return path


def inputs(rows: int) -> dict[str, Any]:
    return {"x0": np.random.default_rng(rows).standard_normal((rows, 64), np.float32)}


@pytest.mark.parametrize("rows", SIZES)
def test_the_program_for_the_arguments_size_runs(path: Path, rows: int) -> None:
    loaded = compiler.load(path)
    assert len(loaded.programs) > 1
    given = inputs(rows)
    (expected,) = compiler.build(model(rows)).run(given).values()
    (found,) = loaded.run(given).values()
    np.testing.assert_array_equal(found, expected)
    bound = loaded.bind(given)
    bound.run()
    (written,) = bound.outputs.values()
    np.testing.assert_array_equal(written, expected)
    assert loaded.profile(given, 1).repeat == 1
    assert loaded.sizes == ("batch=1", "batch=4", "batch=16")


def test_a_size_that_no_program_has_is_refused_with_all_that_there_are(path: Path) -> None:
    expected = r"input 'x0' has 3 as axis 0 \(batch\): the model was built for 1, 4, 16 \(build"
    with pytest.raises(InputError, match=expected):
        compiler.load(path).run(inputs(3))


@pytest.mark.parametrize("given", [{}, {"x0": 1.0}, {"x0": [[1.0], [2.0, 3.0]]}])
def test_arguments_that_fit_no_program_at_all_are_refused_as_ever(
    path: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(InputError):
        compiler.load(path).run(given)


def test_programs_are_tried_in_order_so_that_buckets_may_overlap(tmp_path: Path) -> None:
    """A program whose guard admits more comes after the one that is meant for less."""
    small = built(4)
    wide = replace(built(16), guards=(SizeGuard("batch", "x0", 0, 1, 16),))
    path = tmp_path / "buckets.tuned"
    write_artefact.save(small, path, [sealed(wide)])
    loaded = compiler.load(path)
    assert len(loaded.programs) > 1
    assert loaded.program_for_shapes({"x0": (4, 64)}).spec.guards == small.guards
    assert loaded.program_for_shapes({"x0": (16, 64)}).spec.guards == wide.guards
    assert loaded.sizes == ("batch=4", "batch=1..16")


PARTS = ((1, 1), (4, 6), (9, 9), (12, 20), (18, 30))


@pytest.fixture(scope="module")
def mixed() -> Executable:
    """Values and ranges of one size, with gaps; the last two overlap."""
    guards = [SizeGuard("length", "x", 1, *ends) for ends in PARTS]
    parts = zip(PARTS, guards, strict=True)
    first, *others = (compile_model(part_graph(*p), guards=[g]).spec for p, g in parts)
    return Executable(first, others=others)


def check_part(outputs: dict[str, Any], x: Any) -> None:
    np.testing.assert_array_equal(outputs["y"], np.maximum(x, 0))
    np.testing.assert_array_equal(outputs["rows"], np.maximum(x, 0).reshape(-1, 5))
    np.testing.assert_allclose(outputs["z"], x.sum(1), rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@hypothesis.given(st.integers(0, 32), st.booleans(), st.integers(0, 9))
def test_values_and_ranges_are_one_executable(
    mixed: Executable, length: int, strided: bool, seed: int
) -> None:
    x = np.random.default_rng(seed).standard_normal((2, length, 5), np.float32)
    given = np.repeat(x, 2, axis=2)[:, :, ::2] if strided else x
    if any(low <= length <= high for low, high in PARTS):
        check_part(mixed.run({"x": given}), x)
        assert mixed.outputs_at({"length": length})["rows"].shape == (2 * length, 5)
        return
    expected = f"input 'x' has {length} as axis 1 .* built for 1, 4..6, 9, 12..20, 18..30"
    with pytest.raises(InputError, match=expected):
        mixed.run({"x": given})
    with pytest.raises(InputError, match="length = "):
        mixed.inputs_at({"length": length})


def test_no_program_is_chosen_outside_of_code(
    mixed: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a program was looked for in Python")

    monkeypatch.setattr(Executable, "programs", property(refuse))
    monkeypatch.setattr(Executable, "program_for_shapes", refuse)
    for low, high in PARTS:
        for length in (low, high):
            x = np.ones((2, length, 5), np.float32)
            check_part(mixed.run({"x": x}), x)


def test_one_entry_compares_and_calls_the_entry_of_one_program(mixed: Executable) -> None:
    text = chain_ir(ModelPorts.of([program.spec for program in mixed.programs]))
    choose, run = (text.split(f"@{name}(", 1)[1].split("\n}", 1)[0] for name in (CHOOSE, RUN))
    assert choose.count("icmp sge") == len(PARTS) + sum(low < high for low, high in PARTS)
    for number in range(len(PARTS)):
        assert run.count(f"call void @run.{number}(") == 1
        program = text.split(f"@run.{number}(", 1)[1].split("\n}", 1)[0]
        assert program.count("call void %") == 1


def test_arrays_given_bound_and_profiled_are_those_of_any_size(mixed: Executable) -> None:
    assert str(mixed.inputs["x"]) == "f32[2, 30, 5]"
    assert "x: f32[2, length:1|4..6|9|12..30, 5]" in repr(mixed)
    assert mixed.inputs_at()["x"].shape == (2, 16, 5)
    frame = mixed.new_frame()
    for length in (5, 1, 30, 9):
        x = np.random.default_rng(length).standard_normal((2, length, 5), np.float32)
        out = {
            name: np.empty(t.shape, np.float32)
            for name, t in mixed.outputs_at({"length": length}).items()
        }
        assert all(mixed.run_in(frame, {"x": x}, out)[name] is array for name, array in out.items())
        check_part(out, x)
        bound = mixed.bind({"x": x})
        bound.run()
        check_part(bound.outputs, x)
        check_part(dict(mixed.profile({"x": x}, 1).outputs), x)
    with pytest.raises(InputError, match=r"\[2, 6, 5\] and must have \[2, 5, 5\]"):
        mixed.run({"x": np.ones((2, 5, 5), np.float32)}, {"y": np.ones((2, 6, 5), np.float32)})


def test_sizes_that_each_program_computes_itself_are_told(tmp_path: Path) -> None:
    specs = [
        compile_model(counted_graph(most), guards=[SizeGuard("n", "x", 0, most + 1, most + 1)]).spec
        for most in (7, 4)
    ]
    path = tmp_path / "counted.tuned"
    write_artefact.save(specs[0], path, specs[1:])
    loaded = compiler.load(path)
    for most, count in ((7, 3), (4, 4), (7, 7), (4, 0)):
        x = np.full(most + 1, 2.0, np.float32)
        (found,) = loaded.run({"x": x, "n": np.array([count])}).values()
        np.testing.assert_array_equal(found, np.full((2, count), 2.0))
    with pytest.raises(InputError, match=r"computed the size found = 5.*0 to 4"):
        loaded.run({"x": np.ones(5, np.float32), "n": np.array([5])})


def test_sizes_that_elements_say_are_those_of_the_program_that_runs() -> None:
    guards = [SizeGuard("n", "x", 0, most, most) for most in (6, 9)]
    specs = [compile_model(taken_graph(g.low), guards=[g]).spec for g in guards]
    both = Executable(specs[0], others=specs[1:])
    assert both.chosen_sizes({"n": 6})["count"] % 2 == 0  # as it must be
    assert both.outputs_at({"count": 8})["relu_2"].shape == (8,)
    for most, count in ((6, 4), (9, 8), (9, 0), (6, 6)):
        x = np.arange(most, dtype=np.float32)
        total, part = both.run({"x": x, "count": np.array([0, count])}).values()
        np.testing.assert_array_equal(part, x[:count])
        assert total == x[:count].sum()
    with pytest.raises(InputError, match=r"count is 8 in element 1 of input 'count'.* 0 to 6"):
        both.run({"x": np.ones(6, np.float32), "count": np.array([0, 8])})


def test_sizes_decide_how_many_axes_outputs_have(tmp_path: Path) -> None:
    specs = squeezed_programs()
    write_artefact.save(specs[0], tmp_path / "ranks.tuned", specs[1:])
    loaded = compiler.load(tmp_path / "ranks.tuned")
    session, theirs = InferenceSession(tmp_path / "ranks.tuned"), exact_session(squeezed_model())
    shapes = [[port.shape for port in each.get_outputs()] for each in (session, theirs)]
    assert shapes[0] == shapes[1] == [[], [], ["b"]]
    assert "y: f32[b:2..5, 3] or f32[3]" in repr(loaded)
    assert loaded.outputs["y"].shape == (5, 3)
    for rows in (1, 2, 5, 1):
        x = np.random.default_rng(rows).standard_normal((rows, 3), np.float32)
        given = {"x": x, "keep": np.array([True, rows > 2, False])}
        expected = dict(zip("y z sums".split(), theirs.run(None, given), strict=True))
        (y, _, _), shape = session.run(None, given), expected["y"].shape
        out = {"y": np.zeros(shape, np.float32)}
        assert y.shape == loaded.outputs_at({"b": rows})["y"].shape == shape
        for name, array in loaded.run(given, out).items():
            assert array.shape == expected[name].shape
            np.testing.assert_allclose(array, expected[name], rtol=1e-6)
        np.testing.assert_array_equal(out["y"], y)
        wrong = {"y": np.zeros((3,) if rows > 1 else (1, 3), np.float32)}
        with pytest.raises(InputError, match=r"built for f32\[b:2..5, 3\] or f32\[3\]"):
            loaded.run(given, wrong)


def test_kernels_that_programs_share_are_loaded_once() -> None:
    spec = compile_model(rows_graph()).spec
    shared: SharedKernels = {}
    first, second = LoadedProgram(spec, shared), LoadedProgram(spec, shared)
    for part in spec.objects:
        assert first.kernel_address(part.symbol) == second.kernel_address(part.symbol)
    guards = [SizeGuard("length", "x", 1, *ends) for ends in ((0, 2), (3, 7))]
    one, other = (sealed(replace(spec, guards=(guard,))) for guard in guards)
    both = Executable(one, others=[other])
    for length in (0, 2, 3, 7):
        x = np.random.default_rng(length).standard_normal((3, length, 5), np.float32)
        np.testing.assert_array_equal(next(iter(both.run({"x": x}).values())), np.maximum(x, 0))
    with pytest.raises(InputError, match="batch is 5 in axis 0 of input 'x'"):
        both.run({"x": np.ones((5, 3, 5), np.float32)})


def test_each_target_has_all_sizes(tmp_path: Path) -> None:
    host = host_target()
    needs = replace(host, features=(*host.features, "avx1024f"))
    programs = [
        *(sealed(replace(built(rows), target=needs)) for rows in (1, 4)),
        *(built(rows) for rows in (1, 4)),
        *(built(rows, baseline_target(host), fallback=True) for rows in (1, 4)),
    ]
    path = tmp_path / "both.tuned"
    write_artefact.save(programs[0], path, programs[1:])
    for fallback, target in ((False, host), (True, baseline_target(host))):
        loaded = compiler.load(path, fallback=fallback)
        assert len(loaded.programs) > 1
        assert {program.spec.target for program in loaded.programs} == {target}
        assert loaded.run(inputs(4)).keys() == loaded.outputs.keys()


def test_what_was_loaded_is_saved_as_a_whole(path: Path, tmp_path: Path) -> None:
    compiler.load(path).save(tmp_path / "again.tuned")
    assert (tmp_path / "again.tuned").read_bytes() == path.read_bytes()


def test_constants_that_programs_share_are_stored_once(
    path: Path, specs: list[ExecutableSpec], tmp_path: Path
) -> None:
    distinct = {digest: size for spec in specs for digest, size in _constants(spec)}
    alone = tmp_path / "alone.tuned"
    write_artefact.save(specs[0], alone)
    constants = sum(array.nbytes for spec in specs for array in spec.constants)
    code = sum(len(part.code) for spec in specs for part in spec.objects)
    assert path.stat().st_size < sum(distinct.values()) + code + 40_000
    assert sum(distinct.values()) < constants


def _constants(spec: ExecutableSpec) -> list[tuple[str, int]]:
    digests = spec.digests[len(spec.objects) :]
    return [(d, array.nbytes) for d, array in zip(digests, spec.constants, strict=True)]


def test_a_file_of_one_program_for_each_cpu_has_the_format_that_has_such(
    path: Path, specs: list[ExecutableSpec], tmp_path: Path
) -> None:
    assert _format(path) == file_header.PROGRAMS
    plain = tmp_path / "plain.tuned"
    write_artefact.save(sealed(replace(specs[0], guards=())), plain)
    assert _format(plain) == file_header.TWO_VARIANTS
    baseline = compile_model(model(1), target=baseline_target(host_target())).spec
    write_artefact.save(sealed(replace(specs[0], guards=())), plain, [baseline])
    assert _format(plain) == file_header.REPACKED  # with constants that are repacked
    assert compiler.load(plain).spec.target == host_target()


def _format(path: Path) -> int:
    (found,) = struct.unpack_from("<I", path.read_bytes(), 8)
    return int(found)


@pytest.mark.parametrize(
    "change",
    [
        lambda variants: variants[1].update(guards=[["batch", "x0", 0, 1, 64]]),
        lambda variants: variants[1].update(guards=[]),
        lambda variants: variants[1].pop("guards"),
        lambda variants: variants[0]["guards"].append(["seq", "x0", 1, 1, 64]),
        lambda variants: variants[0]["guards"][0].append(1),
    ],
)
def test_a_guard_that_was_edited_is_refused(
    path: Path, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    rewrite_manifest(path, lambda manifest: change(manifest["variants"]))
    with pytest.raises(ArtefactError, match="its manifest and its code differ"):
        compiler.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda variants: variants.pop(1),
        lambda variants: variants.append(variants[0]),
    ],
)
def test_programs_that_were_dropped_or_doubled_are_refused(
    path: Path, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    rewrite_manifest(path, lambda manifest: change(manifest["variants"]))
    with pytest.raises(ArtefactError, match="a manifest that is not valid"):
        compiler.load(path)


@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        (SizeGuard("batch", "y", 0, 1, 1), "there is no axis 0 of 'y'"),
        (SizeGuard("batch", "x0", 2, 1, 1), "there is no axis 2 of 'x0'"),
        (SizeGuard("batch", "x0", 0, 2, 1), "no size is batch=2..1"),
    ],
)
def test_a_guard_that_no_shape_meets_is_refused(guard: SizeGuard, reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        compile_model(model(1), guards=[guard])


def test_programs_of_different_models_are_refused(tmp_path: Path) -> None:
    maker = GraphMaker()
    other = compile_model(maker.graph(maker.node("exp", maker.input(4, 64)))).spec
    with pytest.raises(VerifyError, match="not the same inputs and outputs"):
        write_artefact.save(built(1), tmp_path / "x.tuned", [other])
    assert not list(tmp_path.iterdir())
