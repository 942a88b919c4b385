"""The zoo's models by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import onnx

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.frontend.symbol_names import usual_bounds
from tunefarm.compiler.frontend.zoo.classifiers import (
    convnext_pico,
    efficientnet_b0,
    mlp,
    mobilenet_v2,
    resnet18,
    resnet34,
    resnet50,
    squeezenet1_1,
    vgg11,
)
from tunefarm.compiler.frontend.zoo.decoder import decoder_prefill, decoder_step
from tunefarm.compiler.frontend.zoo.dense_outputs import crnn, deeplab_v3plus, unet
from tunefarm.compiler.frontend.zoo.detectors import yolov3_tiny, yolov8n
from tunefarm.compiler.frontend.zoo.network import NetworkBuilder, Size
from tunefarm.compiler.frontend.zoo.transformers import encoder, vit_tiny
from tunefarm.configs.files import replacing

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

_FAMILIES = {"decoder_prefill": "decoder", "decoder_step": "decoder"}
"""Models that share their weights."""


_PAST, _PRESENT = "past_sequence_length", "past_sequence_length + 1"
_IMAGES: dict[str, tuple[str, ...]] = {"input": ("batch",), "logits": ("batch",)}
_DYNAMIC: dict[str, dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            "resnet18",
            "resnet34",
            "resnet50",
            "mobilenet_v2",
            "squeezenet1_1",
            "vgg11",
            "efficientnet_b0",
            "convnext_pico",
            "mlp",
        ),
        _IMAGES,
    ),
    "unet": {
        "input": ("batch", "", "height", "width"),
        "logits": ("batch", "", "height", "width"),
    },
    "encoder": {
        "input": ("batch", "sequence"),
        "hidden": ("batch", "sequence"),
        "pooled": ("batch",),
    },
    "decoder_prefill": {
        "input_ids": ("batch", "sequence"),
        "position_ids": ("batch", "sequence"),
        "logits": ("batch", "sequence"),
        "present": ("batch", "", "sequence"),
    },
    "decoder_step": {
        "input_ids": ("batch",),
        "position_ids": ("batch",),
        "attention_mask": ("batch", _PRESENT),
        "past_key_values": ("batch", "", _PAST),
        "logits": ("batch",),
        "present": ("batch", "", _PRESENT),
    },
}
"""Axes that are dynamic in a model's dynamic form, by input and output; of several with a dot in
their names, by what is before it."""


def dynamic_shapes(name: str) -> dict[str, tuple[str]]:
    """Usual bounds of the dynamic axes in a model's dynamic form, by symbol."""
    names = [symbol for axes in _DYNAMIC.get(name, {}).values() for symbol in axes if symbol]
    shapes: dict[str, tuple[str]] = {}
    for symbol in filter(str.isidentifier, names):
        low, high = usual_bounds(symbol) or (1, 8)
        shapes[symbol] = (f"{low}..{high}",)
    return shapes


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
    size = size or Size()
    if size.dynamic and name not in _DYNAMIC:
        raise SettingsError(
            f"{name} has no form with dynamic shapes",
            hint=f"these have: {', '.join(_DYNAMIC)}",
        )
    net = NetworkBuilder(name, seed, _FAMILIES.get(name, name), size.dynamic)
    topology(net, size)
    if size.dynamic:
        net.name_axes(_DYNAMIC[name])
    return net.model()


def write_model(name: str, output: Path, seed: int = 0, dynamic: bool = False) -> Path:
    """Write a model of the zoo to an ONNX file, see `save_model`.

    A `dynamic` one has dynamic batch, tokens and images. Raises SettingsError for an unknown name
    and for a file that cannot be written.
    """
    model = build_model(name, seed=seed, size=Size(dynamic=dynamic))
    return save_model(model.SerializeToString(), output)


def save_model(content: bytes, output: Path) -> Path:
    """Write an ONNX file's content, replacing the file as a whole.

    Raises SettingsError where that fails.
    """
    output = Path(output)
    try:
        with replacing(output) as unfinished:
            unfinished.write_bytes(content)
    except OSError as error:
        raise SettingsError(
            f"{output} cannot be written: {error.strerror or error}",
            hint="choose another --output",
        ) from error
    return output
