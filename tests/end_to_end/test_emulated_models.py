"""The models of the zoo as C libraries for 64-bit Arm, cross-built and run by an emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compiler.runtime.emulated import cross_compiled, emulated, example_outputs
from tests.end_to_end.test_models import SMALL, SPELLED_OUT
from tests.onnxruntime_session import exact_session
from tests.targets import target_named
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.pipeline import compile_model
from tunefarm.tuner.confirm.drawn_inputs import seeded_inputs

DEEP = dict.fromkeys(("resnet34", "resnet50", "vgg11"), Size(image=32, width=0.25, classes=10))
MODELS = {**SMALL, **SPELLED_OUT, **DEEP}
ARMS = ("neoverse-v1", "armv8-neon")


@emulated
@pytest.mark.nightly
@pytest.mark.parametrize("model", sorted(MODELS))
def test_models_compute_what_onnxruntime_does(model: str, tmp_path: Path) -> None:
    """Every other one with two threads; one or two of them are in the ordinary run."""
    proto = build_model(model, size=MODELS[model])
    threads = 1 + len(model) % 2
    arm = target_named(ARMS[threads - 1])
    spec = compile_model(import_model_proto(proto), target=arm, threads=threads).spec
    cross_compiled(spec, tmp_path, "model")
    inputs = seeded_inputs(dict(spec.inputs))
    found = example_outputs(spec, tmp_path, "model", inputs)
    session = exact_session(proto)
    for name, expected in zip(found, session.run(list(found), inputs), strict=True):
        assert np.abs(found[name] - expected).max() <= 1e-4 * np.abs(expected).max()
