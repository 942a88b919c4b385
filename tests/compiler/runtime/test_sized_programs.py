"""One artefact of several programs: which one runs a call, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import ArtefactError, InputError, VerifyError
from compiler.graph.ir import Graph
from compiler.pipeline import compile_model
from compiler.runtime import artefact
from compiler.runtime.executable_spec import ExecutableSpec
from compiler.runtime.guards import SizeGuard
from compiler.runtime.sized_programs import SizedPrograms
from compiler.target import Target, baseline_target, host_target
from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.edited_artefacts import rewrite_manifest
from tests.compiler.runtime.hand_kernels import sealed

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
    artefact.save(specs[0], path, specs[1:])
    return path


def inputs(rows: int) -> dict[str, Any]:
    return {"x0": np.random.default_rng(rows).standard_normal((rows, 64), np.float32)}


@pytest.mark.parametrize("rows", SIZES)
def test_the_program_for_the_arguments_size_runs(path: Path, rows: int) -> None:
    loaded = compiler.load(path)
    assert isinstance(loaded, SizedPrograms)
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
    artefact.save(small, path, [sealed(wide)])
    loaded = compiler.load(path)
    assert isinstance(loaded, SizedPrograms)
    assert loaded.program_for(inputs(4)).spec.guards == small.guards
    assert loaded.program_for(inputs(16)).spec.guards == wide.guards
    assert loaded.sizes == ("batch=4", "batch=1..16")


def test_each_target_has_all_sizes(tmp_path: Path) -> None:
    host = host_target()
    needs = replace(host, features=(*host.features, "avx1024f"))
    programs = [
        *(sealed(replace(built(rows), target=needs)) for rows in (1, 4)),
        *(built(rows) for rows in (1, 4)),
        *(built(rows, baseline_target(host), fallback=True) for rows in (1, 4)),
    ]
    path = tmp_path / "both.tuned"
    artefact.save(programs[0], path, programs[1:])
    for fallback, target in ((False, host), (True, baseline_target(host))):
        loaded = compiler.load(path, fallback=fallback)
        assert isinstance(loaded, SizedPrograms)
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
    artefact.save(specs[0], alone)
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
    assert _format(path) == artefact.FORMAT
    plain = tmp_path / "plain.tuned"
    artefact.save(sealed(replace(specs[0], guards=())), plain)
    assert _format(plain) == artefact.TWO_VARIANTS
    baseline = compile_model(model(1), target=baseline_target(host_target())).spec
    artefact.save(sealed(replace(specs[0], guards=())), plain, [baseline])
    assert _format(plain) == artefact.FORMAT
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
    with pytest.raises(ArtefactError, match="says other than its code"):
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
        artefact.save(built(1), tmp_path / "x.tuned", [other])
    assert not list(tmp_path.iterdir())
