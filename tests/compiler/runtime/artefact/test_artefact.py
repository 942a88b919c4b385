"""Artefacts: the same model comes back, and a damaged or foreign one is refused before it runs."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.edited_artefacts import manifest_text, rewrite_manifest, with_manifest
from tests.compiler.runtime.hand_kernels import COUNT, chain_spec, sealed
from tests.processes import python
from tunefarm import compiler
from tunefarm.compiler.errors import ArtefactError, VerifyError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.runtime.artefact import artefact, file_header, write_artefact
from tunefarm.compiler.runtime.artefact.file_header import FORMAT
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.buffers import address_of
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT, ExecutableSpec
from tunefarm.compiler.target import baseline_target, host_target

WEIGHT = np.linspace(-1, 1, COUNT, dtype=np.float32)


@pytest.fixture(scope="module")
def spec() -> ExecutableSpec:
    return chain_spec(WEIGHT)


def _if_model() -> onnx.ModelProto:
    branches = {}
    for name, operator in (("then_branch", "Exp"), ("else_branch", "Tanh")):
        node = helper.make_node(operator, ["x"], [name])
        output = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4])
        branches[name] = helper.make_graph([node], name, [], [output])
    inputs = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, []),
    ]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])
    node = helper.make_node("If", ["which"], ["y"], **branches)
    graph = helper.make_graph([node], "choice", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_a_file_with_branches_is_none_for_versions_that_would_run_both(tmp_path: Path) -> None:
    executable = compiler.build(import_model_proto(_if_model()))
    executable.save(tmp_path / "choice.tuned")
    assert (tmp_path / "choice.tuned").read_bytes()[8] == file_header.PROGRAMS
    loaded = compiler.load(tmp_path / "choice.tuned")
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    for which, function in ((True, np.exp), (False, np.tanh)):
        found = loaded.run({"x": x, "which": np.array(which)})["y"]
        np.testing.assert_allclose(found, function(x), rtol=1e-6)


def _two_constants() -> Graph:
    """Two products with matrices of one type."""
    maker = GraphMaker()
    first = maker.node("matmul", maker.input(1, 4), maker.weights(4, 4))
    return maker.graph(maker.node("matmul", first, maker.weights(4, 4)))


@pytest.fixture
def path(spec: ExecutableSpec, tmp_path: Path) -> Path:
    path = tmp_path / "chain.tuned"
    write_artefact.save(spec, path)
    return path


def test_loaded_model_computes_the_same(spec: ExecutableSpec, path: Path) -> None:
    x = np.linspace(0, 1, COUNT, dtype=np.float32)
    built, loaded = Executable(spec), compiler.load(path)
    np.testing.assert_array_equal(loaded.run({"x": x})["y"], built.run({"x": x})["y"])
    assert (loaded.inputs, loaded.outputs) == (built.inputs, built.outputs)
    assert loaded.kernels == built.kernels
    assert loaded.spec.steps == spec.steps
    assert loaded.spec.target == spec.target


def test_constants_are_mapped_read_only_and_aligned(path: Path) -> None:
    loaded = artefact.read(path)
    np.testing.assert_array_equal(loaded.constants[0], WEIGHT)
    assert address_of(loaded.constants[0]) % ALIGNMENT == 0
    assert not loaded.constants[0].flags.writeable


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no large pages here"
)
def test_constants_are_mapped_in_large_pages_where_there_are_some(path: Path) -> None:
    loaded = artefact.read(path)
    assert loaded.constants
    maps = Path("/proc/self/smaps").read_text().split("VmFlags:")
    flags = [after.split("\n")[0] for part, after in pairwise(maps) if str(path) in part]
    assert flags
    assert all(" hg" in text for text in flags)


def test_model_still_runs_when_its_file_is_removed_or_replaced(path: Path) -> None:
    loaded = compiler.load(path)
    path.unlink()
    x = np.zeros(COUNT, np.float32)
    np.testing.assert_allclose(loaded.run({"x": x})["y"], np.exp(4 * WEIGHT), rtol=1e-5)


def test_same_model_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tuned"
    Executable(chain_spec(WEIGHT)).save(again)
    assert again.read_bytes() == path.read_bytes()


def test_saving_what_was_loaded_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tuned"
    compiler.load(path).save(again)
    assert again.read_bytes() == path.read_bytes()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_is_noticed(path: Path, data: st.DataObject) -> None:
    contents = bytearray(path.read_bytes())
    where = data.draw(st.integers(0, len(contents) - 1))
    contents[where] ^= data.draw(st.integers(1, 255))
    changed = path.with_suffix(".changed")
    changed.write_bytes(contents)
    with pytest.raises(ArtefactError, match=r"damaged|not a tunefarm|truncated|artifact format"):
        artefact.read(changed)


def test_any_changed_header_byte_is_noticed(path: Path) -> None:
    contents = path.read_bytes()
    damaged = path.with_suffix(".damaged")
    for where in range(64):
        for flip in (1, 128):
            damaged.write_bytes(
                contents[:where] + bytes([contents[where] ^ flip]) + contents[where + 1 :]
            )
            with pytest.raises(ArtefactError):
                artefact.read(damaged)


@pytest.mark.parametrize("size", [0, 1, 8, 63, 64, 200, -1])
def test_truncated_file_is_refused(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArtefactError, match=r"truncated|not a tunefarm artifact"):
        artefact.read(path)


def test_bytes_after_the_end_are_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(64))
    with pytest.raises(ArtefactError, match="its size differs from"):
        artefact.read(path)


def test_foreign_file_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "model.onnx"
    foreign.write_bytes(b"\x08\x07" * 100)
    with pytest.raises(ArtefactError, match="is not a tunefarm artifact"):
        compiler.load(foreign)
    with pytest.raises(ArtefactError, match="No such file"):
        compiler.load(tmp_path / "missing.tuned")
    with pytest.raises(ArtefactError, match="it is a folder"):
        compiler.load(tmp_path)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (FORMAT + 1, r"format 10, this version reads 9 \(update tunefarm"),
        (2, r"older artifact format 2, this version reads 3 to 8 \(build the model again"),
    ],
)
def test_another_format_is_refused(path: Path, number: int, reason: str) -> None:
    contents = bytearray(path.read_bytes())
    struct.pack_into("<I", contents, 8, number)
    path.write_bytes(contents)
    with pytest.raises(ArtefactError, match=reason):
        compiler.load(path)


def test_missing_cpu_feature_is_refused_before_any_code_is_loaded(
    spec: ExecutableSpec, path: Path
) -> None:
    target = host_target()
    needs = replace(target, features=(*target.features, "avx1024f"))
    write_artefact.save(sealed(replace(spec, target=needs)), path)
    with pytest.raises(ArtefactError, match=r"needs CPU features that this .* lacks: avx1024f"):
        compiler.load(path)


def test_other_architecture_is_refused(spec: ExecutableSpec, path: Path) -> None:
    target = replace(host_target(), triple="riscv64-unknown-linux-gnu")
    write_artefact.save(sealed(replace(spec, target=target)), path)
    with pytest.raises(ArtefactError, match="built for riscv64 linux, this machine is"):
        compiler.load(path)


# --- manifests that were edited, with every hash made right again ----------------------------


def edit(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    """Give one place of the first variant's manifest another value."""

    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest["variants"][0]
        for key in path[:-1]:
            place = place[key]
        assert repr(place[path[-1]]) != repr(to)
        place[path[-1]] = to

    return change


@pytest.mark.parametrize(
    "change",
    [
        edit("arena_bytes", to=0),
        edit("arena_bytes", to=10**30),
        edit("threads", to=0),
        edit("threads", to=True),
        edit("threads", to=10**9),
        edit("inputs", to=[]),
        edit("inputs", 0, 2, to=[COUNT + 1]),
        edit("inputs", 0, 2, to=[float(COUNT)]),
        edit("inputs", 0, 1, to="f64"),
        edit("inputs", 0, 0, to=7),
        edit("outputs", 0, 2, 0, to=-1),
        edit("steps", to=[]),
        edit("steps", 0, "workspace", to=1 << 40),
        edit("steps", 0, "buffers", 2, 1, to=4096),
        edit("steps", 0, "buffers", 1, 1, to=1),
        edit("steps", 0, "call", to="kernel_other"),
        edit("constant_types", 0, 1, to=[1, COUNT]),
        edit("target", "features", to=[]),
        edit("target", "cpu", to="x86-64"),
        edit("object_symbols", to=["kernel_exp", "kernel_add"]),
        edit("kernels", 0, "workspace_bytes", to=0),
        edit("kernels", 0, "latency", to=float("nan")),
        edit("kernels", 0, "flops", to=1),
        edit("kernels", 0, "sources", to=None),
        edit("fallback", to=True),
        edit("name", to="another"),
        lambda manifest: manifest["variants"][0].update(unknown=1),
        lambda manifest: manifest["variants"][0].pop("steps"),
        lambda manifest: manifest["variants"].append(manifest["variants"][0]),
    ],
)
def test_manifest_that_says_other_than_its_code_is_refused(
    path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    rewrite_manifest(path, change)
    with pytest.raises(
        ArtefactError, match=r"its manifest and its code differ|not valid"
    ) as refused:
        compiler.load(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(variants=[]),
        lambda manifest: manifest.update(variants={}),
        lambda manifest: manifest.update(variants=[7]),
        lambda manifest: manifest.update(more=1),
        lambda manifest: manifest.pop("parts"),
        lambda manifest: manifest["parts"][0].append(1),
        lambda manifest: manifest["parts"].__setitem__(0, None),
        lambda manifest: manifest["parts"][0].__setitem__(0, "0"),
        lambda manifest: manifest["parts"][0].__setitem__(0, False),
        lambda manifest: manifest["variants"][0].update(parts="0123"),
        lambda manifest: manifest["variants"][0].update(parts=[]),
    ],
)
def test_manifest_of_another_form_is_refused(
    path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    rewrite_manifest(path, change)
    with pytest.raises(ArtefactError, match="a manifest that is not valid"):
        compiler.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"[" * 100_000,
        lambda text: b"7",
        lambda text: b"{}",
        lambda text: b"\xff" + text,
        lambda text: text + b"\n",
        lambda text: b'{"parts":[],' + text[1:],
        lambda text: text.replace(b'"threads":1', b'"threads":' + b"1" * 5000),
        lambda text: text.replace(b'"threads":1', b'"threads":NaN'),
        lambda text: text.replace(b"hand_made", b"hand\\ud800"),
    ],
)
def test_manifest_that_is_not_the_json_of_an_artefact_is_refused(
    path: Path, change: Callable[[bytes], bytes]
) -> None:
    contents = path.read_bytes()
    text = manifest_text(contents)
    assert change(text) != text
    path.write_bytes(with_manifest(contents, change(text)))
    with pytest.raises(ArtefactError, match=r"not valid|code differ") as refused:
        compiler.load(path)
    assert str(refused.value).isprintable()


def test_parts_that_change_places_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "two constants.tuned"
    executable = compiler.build(_two_constants())
    x = np.ones((1, 4), np.float32)
    executable.save(path)
    np.testing.assert_array_equal(
        compiler.load(path).run({"x0": x})["matmul_1"], executable.run({"x0": x})["matmul_1"]
    )

    def swap(manifest: dict[str, Any]) -> None:
        parts = manifest["variants"][0]["parts"]
        parts[-1], parts[-2] = parts[-2], parts[-1]

    rewrite_manifest(path, swap)
    with pytest.raises(ArtefactError, match="its manifest and its code differ"):
        compiler.load(path)


def test_entry_that_was_made_for_another_spec_is_not_saved(
    spec: ExecutableSpec, tmp_path: Path
) -> None:
    with pytest.raises(VerifyError, match="holds the seal of another one"):
        write_artefact.save(replace(spec, arena_bytes=spec.arena_bytes + 64), tmp_path / "x.tuned")
    with pytest.raises(VerifyError, match=r"two programs are for .* and the same sizes"):
        write_artefact.save(spec, tmp_path / "x.tuned", others=[spec])
    assert not list(tmp_path.iterdir())


def test_missing_part_is_refused(path: Path) -> None:
    original = path.read_bytes()

    def point_nowhere(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["parts"][-1] = 4

    def move_away(manifest: dict[str, Any]) -> None:
        manifest["parts"][-1][0] = 10**9 * 64

    for change, reason in (
        (point_nowhere, "lacks a part of a variant"),
        (
            lambda manifest: manifest["variants"][0]["parts"].pop(),
            "its manifest and its code differ",
        ),
        (move_away, "lacks part 3"),
        (lambda manifest: manifest["parts"].pop(), "damaged: bytes follow the last part"),
    ):
        path.write_bytes(original)
        rewrite_manifest(path, change)
        with pytest.raises(ArtefactError, match=reason):
            compiler.load(path)


# --- a second variant, for CPUs that lack what the first one needs ---------------------------


@pytest.fixture
def two_variants(spec: ExecutableSpec, tmp_path: Path) -> Path:
    """A model for a CPU that there is not, with a fallback for this one."""
    target = host_target()
    needs = replace(target, features=(*target.features, "avx1024f"))
    path = tmp_path / "two.tuned"
    fallback = sealed(replace(spec, fallback=True))
    write_artefact.save(sealed(replace(spec, target=needs)), path, [fallback])
    return path


def test_the_fallback_runs_where_a_cpu_feature_is_missing(
    two_variants: Path, spec: ExecutableSpec
) -> None:
    x = np.linspace(0, 1, COUNT, dtype=np.float32)
    loaded = compiler.load(two_variants)
    assert loaded.spec.target == spec.target
    np.testing.assert_array_equal(loaded.run({"x": x})["y"], Executable(spec).run({"x": x})["y"])


def test_the_first_variant_is_preferred_and_the_fallback_may_be_asked_for(
    spec: ExecutableSpec, tmp_path: Path
) -> None:
    portable = sealed(replace(spec, target=baseline_target(spec.target), fallback=True))
    path = tmp_path / "two.tuned"
    write_artefact.save(spec, path, others=[portable])
    assert compiler.load(path).spec.target == spec.target
    assert compiler.load(path, fallback=True).spec.target == portable.target


def test_the_fastest_variant_that_runs_here_is_taken(spec: ExecutableSpec, tmp_path: Path) -> None:
    """Of several for other CPUs; a file of so many is not for versions that know of two."""
    here, path = spec.target, tmp_path / "many.tuned"
    newer = replace(here, features=(*here.features, "avx1024f"))
    less = replace(here, features=(*here.features, "avx1023f"))
    targets = (less, here, baseline_target(here))
    fallbacks = [sealed(replace(spec, target=target, fallback=True)) for target in targets]
    write_artefact.save(sealed(replace(spec, target=newer)), path, fallbacks)
    assert compiler.load(path).spec.target == here
    assert compiler.load(path, fallback=True).spec.target == baseline_target(here)
    assert struct.unpack_from("<I", path.read_bytes(), 8) == (file_header.LADDER,)
    write_artefact.save(sealed(replace(spec, target=newer)), path, fallbacks[:1])
    assert struct.unpack_from("<I", path.read_bytes(), 8) == (file_header.TWO_VARIANTS,)
    with pytest.raises(ArtefactError, match=r"no program for .* needs avx1024f; .* needs avx1023f"):
        compiler.load(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda manifest: manifest["variants"].reverse(), "programs are not in order"),
        (lambda manifest: manifest["variants"].pop(), "parts that no variant uses"),
        (lambda manifest: manifest["variants"].pop(0), "parts that no variant uses"),
        (
            lambda manifest: manifest["variants"][1].update(
                steps=manifest["variants"][1]["steps"][1:]
            ),
            "its manifest and its code differ",
        ),
    ],
)
def test_variants_that_were_moved_dropped_or_edited_are_refused(
    two_variants: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    rewrite_manifest(two_variants, change)
    with pytest.raises(ArtefactError, match=reason):
        compiler.load(two_variants)


def test_a_fallback_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"built without a fallback \(tune build --fallback"):
        compiler.load(path, fallback=True)


def test_parts_that_variants_share_are_stored_once(two_variants: Path, path: Path) -> None:
    assert two_variants.stat().st_size < path.stat().st_size + 8192


def test_damage_in_the_variant_that_is_not_used_is_noticed(
    spec: ExecutableSpec, tmp_path: Path
) -> None:
    target = baseline_target(spec.target)
    portable = sealed(replace(chain_spec(WEIGHT + 1), target=target, fallback=True))
    path = tmp_path / "two.tuned"
    write_artefact.save(spec, path, others=[portable])
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    with pytest.raises(ArtefactError, match="damaged: part"):
        compiler.load(path)


def test_failed_save_leaves_the_old_file_and_no_other(
    spec: ExecutableSpec, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ArtefactError, match=r"cannot write .*chain.tuned: No space left"):
        write_artefact.save(chain_spec(WEIGHT + 1), path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_save_into_a_missing_folder_is_refused(spec: ExecutableSpec, tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="cannot write"):
        write_artefact.save(spec, tmp_path / "missing" / "x.tuned")


def test_loading_needs_numpy_and_llvmlite_only(path: Path) -> None:
    program = (
        "import sys, tunefarm\n"
        f"tunefarm.load({str(path)!r})\n"
        "foreign = {'onnx', 'ray', 'xgboost', 'optuna', 'sqlalchemy'}\n"
        "foreign.add('tunefarm.compiler.pipeline')\n"
        "sys.exit(', '.join(foreign & set(sys.modules)) or None)\n"
    )
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")
