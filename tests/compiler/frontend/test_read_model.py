"""Files that are no ONNX models, or not ones that can be read, give one readable error each."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import model, node, tensor
from tunefarm.compiler.errors import ImportModelError, TunefarmError
from tunefarm.compiler.frontend.import_onnx import import_model_proto, import_onnx
from tunefarm.compiler.frontend.read_model import read_model
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.limits import ResourceBudget

RELU = model([node("Relu", "x")], [tensor("x", [2])])


def refusal(path: Path) -> str:
    with pytest.raises(ImportModelError) as caught:
        import_onnx(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_file(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "none.onnx")


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT4])
def test_weights_of_a_large_file_stay_in_it(
    dtype: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    random, path = np.random.default_rng(0), tmp_path / "a model.onnx"
    values = random.integers(0, 16, (128, 64)).astype(helper.tensor_dtype_to_np_dtype(dtype))
    casts = [node("Cast", name, f"{name}.f32", to=TensorProto.FLOAT) for name in ("w", "s")]
    nodes = [*casts, node("Sub", "w.f32 s.f32", "shifted"), node("Add", "x shifted")]
    onnx.save(model(nodes, [tensor("x", [64])], constants={"w": values, "s": values[:1]}), path)
    expected = read_model(path, ResourceBudget())
    graph = import_onnx(path)
    monkeypatch.setattr("tunefarm.compiler.frontend.read_model.FREE_BYTES", 1)
    monkeypatch.setattr("tunefarm.compiler.frontend.read_model.LEAST_BYTES", 1024)
    found = read_model(path, ResourceBudget())
    assert [tensor.HasField("raw_data") for tensor in found.graph.initializer] == [False, True]
    assert found.graph.node == expected.graph.node and found.opset_import == expected.opset_import
    assert structural_hash(import_onnx(path)) == structural_hash(graph)
    damaged = bytearray(path.read_bytes())
    for place in range(0, len(damaged), 97):  # the ordinary reader says what is wrong
        path.write_bytes(damaged[:place])
        with suppress(TunefarmError):
            import_onnx(path)


def test_folder(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.touch()
    assert "is empty" in refusal(path)


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "pipe.onnx"
    os.mkfifo(path)
    assert "not a regular file" in refusal(path)


@pytest.mark.parametrize("data", [b"hello world\n", b"PK\x03\x04" + bytes(40), b"{}", b"\x01"])
def test_other_kinds_of_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(data)
    assert "not an ONNX model" in refusal(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = RELU.SerializeToString()
    path = tmp_path / "cut.onnx"
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        refusal(path)


def test_model_without_graph() -> None:
    bare = onnx.ModelProto(ir_version=10, opset_import=[helper.make_opsetid("", 18)])
    with pytest.raises(ImportModelError, match="has no graph"):
        import_model_proto(bare)


def test_model_without_opset() -> None:
    changed = onnx.ModelProto()
    changed.CopyFrom(RELU)
    del changed.opset_import[:]
    with pytest.raises(ImportModelError, match="does not declare its opset"):
        import_model_proto(changed)


def test_newer_opset_is_refused() -> None:
    changed = onnx.ModelProto()
    changed.CopyFrom(RELU)
    changed.opset_import[0].version = 999
    with pytest.raises(ImportModelError, match="uses opset 999") as caught:
        import_model_proto(changed)
    assert "newer onnx" in caught.value.hint


def test_default_domain_has_an_alias() -> None:
    changed = onnx.ModelProto()
    changed.CopyFrom(RELU)
    changed.opset_import[0].domain = "ai.onnx"
    changed.graph.node[0].domain = "ai.onnx"
    assert [node.operator for node in import_model_proto(changed).nodes] == ["relu"]


def test_damaged_files_give_readable_errors_only(tmp_path: Path) -> None:
    """Random damage may leave a valid model; otherwise it is always one of our errors."""
    randomness = random.Random(5)
    size = Size(image=32, width=0.1, tokens=4, layers=1, classes=4)
    originals = [
        RELU.SerializeToString(),
        build_model("encoder", size=size).SerializeToString()[:4000],
        build_model("squeezenet1_1", size=size).SerializeToString(),
    ]
    path = tmp_path / "damaged.onnx"
    outcomes = set()
    for _ in range(400):
        data = bytearray(randomness.choice(originals))
        for _ in range(randomness.choice((1, 2, 6))):
            position = randomness.randrange(len(data))
            data[position] = randomness.randrange(256)
        path.write_bytes(data)
        try:
            import_onnx(path)
            outcomes.add("imported")
        except TunefarmError as error:
            assert str(error)
            outcomes.add("refused")
    assert outcomes == {"imported", "refused"}
