"""The page of operators agrees with what an import accepts and refuses."""

from __future__ import annotations

import re

import onnx
import pytest

from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.frontend.converter import converted_operators, covered_versions
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.tuner.docs.references import operators_page

PAGE = operators_page()
_ROW = re.compile(r"^\| `(\w+)` \| ([\d, ]*) \| ([\w ]+) \| ([\d, ]*) \|$", re.M)


def rows(title: str) -> dict[str, tuple[str, ...]]:
    """The rows of a domain's table by operator: versions, how, refused versions."""
    section = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## )", PAGE, re.M | re.S)
    assert section, title
    return {name: rest for name, *rest in map(list, _ROW.findall(section[1]))}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("title", "domain"),
    [("ONNX (ai.onnx)", ""), ("onnxruntime (com.microsoft)", "com.microsoft")],
)
def test_every_converter_is_listed(title: str, domain: str) -> None:
    table = rows(title)
    for own, operator in converted_operators():
        if own == domain:
            versions = ", ".join(map(str, covered_versions(domain, operator)))
            assert list(table[operator][:2]) == [versions, "compiled"]


def test_other_ways_are_named() -> None:
    table = rows("ONNX (ai.onnx)")
    assert table["If"][1] == "control flow"
    assert table["SoftmaxCrossEntropyLoss"][1] == "decomposed"
    assert table["StringSplit"][1] == "strings"
    assert table["LSTM"][2] == "1"
    assert rows("onnxruntime (com.microsoft)")["Tokenizer"][1] == "strings"


@pytest.mark.parametrize(
    ("node", "opset", "is_refused"),
    [
        ("MaxRoiPool <pooled_shape = [1, 1]> (x, r)", 16, True),
        ("AveragePool <kernel_shape = [1, 1]> (x)", 16, False),
        ("Upsample <width_scale = 2.0, height_scale = 2.0> (x)", 1, True),
        ("Upsample <scales = [1.0, 1.0, 2.0, 2.0]> (x)", 7, False),
    ],
)
def test_an_import_agrees(node: str, opset: int, is_refused: bool) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[1,1,4,4] x, float[1,5] r)'
        f" => (float y) {{ y = {node} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    operator = node.split()[0]
    table = rows("ONNX (ai.onnx)")
    versions = table[operator][0].split(", ") if operator in table else []
    since = str(onnx.defs.get_schema(operator, opset).since_version)
    assert (since not in versions) == is_refused
    if is_refused:
        with pytest.raises(UnsupportedOperatorError, match=operator):
            import_model_proto(model)
    else:
        import_model_proto(model)
