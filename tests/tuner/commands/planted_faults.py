"""Faults in models of the zoo, or in the compiler that builds them, for `tune reduce` to find.

`plant` fills a folder: `model.onnx` with the fault, `twin.onnx` without it, and Python that the
command line is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size

SMALL = Size(image=64, width=0.25, tokens=16, layers=2)
DOMAIN = "planted"

# Of a part of the faulty model the check puts back what the twin has: then its outputs are right.
CHECK = """
from pathlib import Path
import numpy as np
import onnx
import onnxruntime

def differs_from_twin(path, inputs):
    return differ(run(onnx.load(path), inputs), run(repaired(path), inputs))

def build_differs(path, inputs):
    from tunefarm.compiler import build
    return differ(build(path).run(inputs), run(repaired(path), inputs))

def repaired(path):
    model, twin = onnx.load(path), onnx.load(Path(__file__).with_name("twin.onnx"))
    nodes = {node.output[0]: node for node in twin.graph.node}
    tensors = {tensor.name: tensor for tensor in twin.graph.initializer}
    for node in model.graph.node:
        node.CopyFrom(nodes[node.output[0]])
    for tensor in model.graph.initializer:
        if tensor.name in tensors:
            tensor.CopyFrom(tensors[tensor.name])
    return model

def run(model, inputs):
    names = [info.name for info in model.graph.output]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return dict(zip(names, session.run(names, inputs)))

def differ(found, expected):
    return any(
        np.abs(found[name] - array).max() > 1e-3 * np.abs(array).max()
        for name, array in expected.items()
    )
"""

FUNCTIONS = """
import numpy as np
import tunefarm

WRONG = {
    "Relu": lambda x: np.abs(x),
    "Sigmoid": lambda x: 1.02 / (1 + np.exp(-x)),
    "Tanh": lambda x: np.clip(x, -1, 1),
    "Exp": lambda x: 1 + x + x * x / 2,
    "Sqrt": lambda x: np.sqrt(x) + np.float32(0.05),
}
for name, function in WRONG.items():
    tunefarm.register_function(
        f"planted::{name}", function, lambda operands, attributes: [operands[0]], version="1"
    )
"""

# Registers a function because modules that register none are refused.
COMPILER = """
from dataclasses import replace
import tunefarm
from tunefarm.compiler.graph import fold_batch_norm

tunefarm.register_function("planted::None", abs, lambda operands, attributes: operands, version="1")
right = fold_batch_norm._emit_scaled

def wrong(rewriter, node, between, norm):
    norm = replace(norm, attributes={**norm.attributes, "epsilon": 0.5})
    right(rewriter, node, between, norm)

fold_batch_norm._emit_scaled = wrong
"""


@dataclass(frozen=True)
class Fault:
    """A fault at the node of this operator and number in a model of the zoo.

    Either its initializer at the input `constant` is wrong, or an attribute, or it is a custom
    operator whose function is wrong. `compiler` is the check that sees a compiler that folds all
    batch norms wrongly.
    """

    model: str
    operator: str
    number: int = 0
    constant: int | None = None
    attribute: tuple[str, Any] | None = None
    compiler: str = ""

    @property
    def name(self) -> str:
        """For the test's name."""
        kind = "constant" if self.constant is not None or self.compiler else "operator"
        kind = "attribute" if self.attribute else kind
        return f"{self.model}-{self.operator}-{self.number}-{kind}{self.compiler}"


BY_DAY = (
    Fault("squeezenet1_1", "Conv", 11, constant=1),
    Fault("unet", "MaxPool", 2, attribute=("pads", [1, 1, 0, 0])),
    Fault("mlp", "Relu", 1),
    Fault("resnet18", "BatchNormalization", compiler="stages"),
)
BY_NIGHT = (
    Fault("mobilenet_v2", "BatchNormalization", 20, constant=3),
    Fault("encoder", "LayerNormalization", 2, constant=1),
    Fault("crnn", "LSTM", 1, constant=2),
    Fault("efficientnet_b0", "Gemm", 0, constant=1),
    Fault("mobilenet_v2", "BatchNormalization", compiler="onnxruntime"),
    Fault("unet", "BatchNormalization", compiler="reference"),
    Fault("resnet50", "BatchNormalization", 30, attribute=("epsilon", 1.0)),
    Fault("yolov3_tiny", "LeakyRelu", 5, attribute=("alpha", 0.3)),
    Fault(
        "deeplab_v3plus",
        "Resize",
        2,
        attribute=("coordinate_transformation_mode", "align_corners"),
    ),
    Fault("convnext_pico", "LayerNormalization", 8, attribute=("epsilon", 1.0)),
    Fault("yolov8n", "Resize", 1, attribute=("nearest_mode", "ceil")),
    Fault("efficientnet_b0", "Sigmoid", 31),
    Fault("encoder", "Tanh", 0),
    Fault("yolov3_tiny", "Exp", 1),
    Fault("vit_tiny", "Sqrt", 3),
    Fault("squeezenet1_1", "Relu", 14),
)


def plant(fault: Fault, folder: Path) -> tuple[list[str], str]:
    """Write the fault's files; the arguments that have it found, and the output of its node."""
    twin = build_model(fault.model, size=SMALL)
    model = onnx.ModelProto()
    model.CopyFrom(twin)
    node = [n for n in model.graph.node if n.op_type == fault.operator][fault.number]
    arguments = ["--check", f"{folder / 'check.py'}:differs_from_twin"]
    if fault.compiler:
        arguments = ["--check", fault.compiler, "--functions", str(folder / "compiler.py")]
    elif fault.attribute is not None:
        _change_attribute(node, *fault.attribute)
    elif fault.constant is not None:
        tensor = next(t for t in model.graph.initializer if t.name == node.input[fault.constant])
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(array * np.float32(1.5), tensor.name))
    else:
        node.domain = DOMAIN
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        arguments = ["--check", f"{folder / 'check.py'}:build_differs"]
        arguments += ["--functions", str(folder / "functions.py")]
    files: Mapping[str, str] = {
        "check.py": CHECK,
        "functions.py": FUNCTIONS,
        "compiler.py": COMPILER,
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    onnx.save(twin, folder / "twin.onnx")
    onnx.save(model, folder / "model.onnx")
    return [str(folder / "model.onnx"), *arguments], node.output[0]


def _change_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
