"""Whole models on machines of another kind than this one: compared by a node of a cluster.

    specs -> artifacts, as bytes -> a node of the target's kind -> their latencies

Only a runner whose nodes can be called does so (`tunefarm.measure.farm.runner.CallsNodes`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tunefarm import compiler
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.runtime.artefact import artefact
from tunefarm.compiler.runtime.artefact.code_digest import code_digest
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.target import Target
from tunefarm.measure.farm.runner import CallsNodes
from tunefarm.tuner.confirm.latency import (
    COMPARISON,
    Agree,
    ModelLatency,
    compare_models,
    outputs_agree,
    outputs_near,
)

PATIENCE = 60.0  # seconds next to those of the comparison: to move artifacts, and to load them
_COMPARE = f"{__name__}:compare_artefacts"


def compare_elsewhere(
    runner: CallsNodes,
    target: Target,
    specs: Sequence[ExecutableSpec],
    seconds: float,
    agree: Agree,
) -> ModelLatency:
    """The latencies of the untuned model, the tuned one and, if there is one, the former one.

    Raises MeasureError when no node tells, or when outputs differ.
    """
    digests = [code_digest([spec]) for spec in specs]
    contents = {d: _bytes_of(s.of_tensors()) for d, s in zip(digests, specs, strict=True)}
    models = tuple(contents[digest] for digest in digests)  # one build is sent once
    arguments = (models, seconds, agree is outputs_near)
    found = runner.call_on(target.key, _COMPARE, arguments, seconds + PATIENCE)
    if not isinstance(found, ModelLatency):
        raise MeasureError(f"a {target.cpu} answered {type(found).__name__}, and no latencies")
    return found


def compare_artefacts(models: Sequence[bytes], seconds: float, near: bool) -> ModelLatency:
    """`compare_models` of artifacts, on the machine that is called."""
    with tempfile.TemporaryDirectory() as folder:
        loaded = []
        for number, content in enumerate(models):
            path = Path(folder, f"{number}.tuned")
            path.write_bytes(content)
            loaded.append(compiler.load(path))
        untuned, tuned, *former = loaded
        options = replace(COMPARISON, max_seconds=seconds)
        agree = outputs_near if near else outputs_agree
        return compare_models(untuned, tuned, former[0] if former else None, options, agree)


def _bytes_of(spec: ExecutableSpec) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.tuned")
        artefact.save(spec, path)
        return path.read_bytes()
