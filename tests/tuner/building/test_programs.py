"""One artefact of several sizes of a model: what each of its programs gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tunefarm
from tests.onnxruntime_session import exact_session
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.artefact import write_artefact
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.types import large_arrays
from tunefarm.tuner.building.size_values import guards_of, programs_of

_CONSTANTS = "<int64 zero = {0}, int64 one = {1}, int64[1] first = {0}>"
BODIES = {
    "branches": """
        shape = Shape (x) b = Gather (shape, zero) is_one = Equal (b, one)
        s = If (is_one) <then_branch = then () => (float[p] a) { a = Squeeze (x, first) },
                         else_branch = other () => (float[p] e) { e = Identity (x) }>
        y = Relu (s)""",
    "nested": """
        shape = Shape (x) b = Gather (shape, zero) is_one = Equal (b, one)
        c = Gather (shape, one) is_row = Equal (c, one)
        y = If (is_one) <
            then_branch = then () => (float[p] a) {
                s = Squeeze (x, first)
                a = If (is_row) <then_branch = row () => (float[p] i) { i = Squeeze (s, first) },
                                 else_branch = rows () => (float[p] j) { j = Relu (s) }>
            },
            else_branch = other () => (float[p] e) { e = Neg (x) }>""",
    "squeeze": "r = Relu (x) y = Squeeze (r)",
    "unsqueezed": "r = Unsqueeze (x, first) s = Squeeze (r) y = Softmax <axis = -1> (s)",
    "integers": "s = Squeeze (x) y = ArgMax <axis = -1, keepdims = 0> (s)",
}


def model_of(body: str) -> onnx.ModelProto:
    kind = "int64" if "ArgMax" in body else "float"
    model = parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[b, c, 4] x) => ({kind}[p] y) {_CONSTANTS} {{ {body} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def check(model: onnx.ModelProto, executable: Executable, columns: Sequence[int]) -> None:
    """The executable gives what onnxruntime gives, of the same ranks."""
    session = exact_session(model)
    for shape in ((b, c, 4) for b in (1, 4) for c in columns):
        x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
        (expected,), found = session.run(None, {"x": x}), executable.run({"x": x})["y"]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_sizes_that_decide_ranks_have_a_program_each(body: str) -> None:
    model, nested = model_of(body), "is_row" in body
    sizes = programs_of({"x": ("b:1|4", "c:1|2" if nested else "c:2..3", 4)})
    graphs = [import_model_proto(model, each.shapes) for each in sizes]
    guards = guards_of(graphs, sizes)
    specs = [compile_model(g, guards=own).spec for g, own in zip(graphs, guards, strict=True)]
    check(model, Executable(specs[0], others=specs[1:]), (1, 2) if nested else (2, 3))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
def test_a_build_for_sizes_that_decide_ranks(tmp_path: Path) -> None:
    path, model = tmp_path / "model.onnx", model_of(BODIES["branches"])
    onnx.save(model, path)
    check(model, tunefarm.build(path, shapes={"x": ("b:1|4", "c:2..3", 4)}), (2, 3))


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
def test_constants_of_all_programs_are_in_files_when_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, random = tmp_path / "model.onnx", np.random.default_rng(3)
    model = parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[b, 96] x) => (float[b, 96] y) { s = MatMul (x, w) y = Add (s, v) }"""
    )
    for name, shape in {"w": (96, 96), "v": (96,)}.items():
        weight = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    onnx.save(model, path)
    monkeypatch.setattr(large_arrays, "FREE_BYTES", 0)
    monkeypatch.setattr(large_arrays, "LEAST_BYTES", 4096)
    sizes: list[tuple[int, int]] = []
    save = write_artefact.save

    def counted(spec: ExecutableSpec, output: Path, others: Sequence[ExecutableSpec]) -> None:
        constants = [array for each in (spec, *others) for array in each.constants]
        owners = {id(owner): owner for owner in map(large_arrays.owner_of, constants)}
        own = [owner.nbytes for owner in owners.values() if not large_arrays.is_mapped(owner)]
        sizes.append((sum(array.nbytes for array in constants), sum(own)))
        save(spec, output, others)

    monkeypatch.setattr(write_artefact, "save", counted)
    built = tunefarm.build(path, shapes={"x": ("b:1|2..4", 96)})
    assert sizes == [(2 * 4 * 96 * 97, 0)]
    x = random.standard_normal((3, 96)).astype(np.float32)
    (expected,) = exact_session(model).run(None, {"x": x})
    np.testing.assert_allclose(built.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)
