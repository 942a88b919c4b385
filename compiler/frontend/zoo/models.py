"""The zoo's models by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import onnx

from compiler.errors import SettingsError
from compiler.frontend.zoo.convnext_pico import convnext_pico
from compiler.frontend.zoo.crnn import crnn
from compiler.frontend.zoo.decoder import decoder_prefill, decoder_step
from compiler.frontend.zoo.deeplab_v3plus import deeplab_v3plus
from compiler.frontend.zoo.efficientnet_b0 import efficientnet_b0
from compiler.frontend.zoo.encoder import encoder
from compiler.frontend.zoo.mlp import mlp
from compiler.frontend.zoo.mobilenet_v2 import mobilenet_v2
from compiler.frontend.zoo.network import NetworkBuilder, Size
from compiler.frontend.zoo.qoperators import with_qoperators
from compiler.frontend.zoo.quantise import Prepare, quantised
from compiler.frontend.zoo.resnet import resnet18, resnet34, resnet50
from compiler.frontend.zoo.squeezenet1_1 import squeezenet1_1
from compiler.frontend.zoo.unet import unet
from compiler.frontend.zoo.vgg11 import vgg11
from compiler.frontend.zoo.vit_tiny import vit_tiny
from compiler.frontend.zoo.yolov3_tiny import yolov3_tiny
from compiler.frontend.zoo.yolov8n import yolov8n
from configs.files import replacing

_MODELS: dict[str, Callable[[NetworkBuilder, Size], None]] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "squeezenet1_1": squeezenet1_1,
    "vgg11": vgg11,
    "efficientnet_b0": efficientnet_b0,
    "convnext_pico": convnext_pico,
    "yolov3_tiny": yolov3_tiny,
    "yolov8n": yolov8n,
    "unet": unet,
    "deeplab_v3plus": deeplab_v3plus,
    "encoder": encoder,
    "vit_tiny": vit_tiny,
    "decoder_prefill": decoder_prefill,
    "decoder_step": decoder_step,
    "crnn": crnn,
    "mlp": mlp,
}

FORMS = ("qdq", "qoperator")
"""How quantised models are written: floats between integers, or operators on integers."""

_FAMILIES = {"decoder_prefill": "decoder", "decoder_step": "decoder"}
"""Models that share their weights."""


def model_names() -> tuple[str, ...]:
    """The names of the zoo's models."""
    return tuple(_MODELS)


def build_model(name: str, *, seed: int = 0, size: Size | None = None) -> onnx.ModelProto:
    """A model at its published size, or reduced; checked by onnx.checker.

    Equal arguments give equal models. Raises SettingsError for an unknown name.
    """
    topology = _MODELS.get(name)
    if topology is None:
        nearest = difflib.get_close_matches(name, _MODELS, n=2)
        known = ", ".join(_MODELS)
        raise SettingsError(
            f"there is no model {name!r} in the zoo (there are: {known})",
            hint=f"did you mean {' or '.join(nearest)}?" if nearest else "",
        )
    net = NetworkBuilder(name, seed, _FAMILIES.get(name, name))
    topology(net, size or Size())
    return net.model()


def write_model(
    name: str,
    output: Path,
    seed: int = 0,
    prepare: Prepare | None = None,
    form: str = FORMS[0],
) -> Path:
    """Write a model of the zoo to an ONNX file, replacing the file as a whole.

    It is quantised, in this form, if `prepare` is there to find the ranges of its values. Raises
    SettingsError for an unknown name or form and for a file that cannot be written.
    """
    output = Path(output)
    if form not in FORMS:
        raise SettingsError(f"there is no form {form!r} of quantised models: {', '.join(FORMS)}")
    model = build_model(name, seed=seed)
    if prepare is not None:
        model = quantised(model, prepare, seed)
        model = with_qoperators(model) if form == "qoperator" else model
    try:
        with replacing(output) as unfinished:
            unfinished.write_bytes(model.SerializeToString())
    except OSError as error:
        raise SettingsError(
            f"{output} cannot be written: {error.strerror or error}",
            hint="choose another --output",
        ) from error
    return output
