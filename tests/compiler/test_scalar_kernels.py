"""Kernels whose default schedule is scalar: a list over the zoo and the operator map that only
shrinks.

The zoo's turn is at night: the goldens of emitted code see its schedules in every run.
tests/golden/scalar_kernels.json counts them by target and model. `--update-golden` writes lower
counts, never a higher one: a kernel that falls into scalar loops is mended, not listed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import onnx
import pytest

from tests.benchmarks.operator_cases.all_cases import all_cases
from tests.targets import target_named
from tunefarm.compiler.errors import ScheduleError, TunefarmError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model, model_names
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.llvm.scalar_work import scalar_work
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import Target

Models: TypeAlias = Iterator[tuple[str, Callable[[], onnx.ModelProto]]]
_LIST = Path(__file__).resolve().parents[1] / "golden" / "scalar_kernels.json"
_WIDE, _SHORT = ("x86-64-v3", "x86-64-v4"), ("x86-64-v2", "armv8-neon")
"""Targets by what their vectors hold: more than 4 numbers, or as few, and no gathers."""


def _zoo() -> Models:
    for name in model_names():
        yield f"zoo: {name}", lambda name=name: build_model(name)  # type: ignore[misc]


def _cases() -> Models:
    for case in all_cases():
        yield case.name, lambda case=case: case.build()[0]  # type: ignore[misc]


def _some_cases() -> Models:
    """Each fifteenth of them."""
    yield from list(_cases())[::15]


def _scalar_kernels(models: Models, names: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """By target, for each model that has some, the scalar kernels with the reasons."""
    targets = {name: target_named(name) for name in names}
    found: dict[str, dict[str, list[str]]] = {name: {} for name in names}
    for name, make in models:
        try:
            graph = import_model_proto(make())
        except TunefarmError:
            continue  # a model that is refused has no kernels
        for target_name, target in targets.items():
            why = list(_reasons(graph, target))
            if why:
                found[target_name][name] = why
    return found


def _reasons(graph: Graph, target: Target) -> Iterator[str]:
    """The graph's scalar kernels on the target, and why."""
    try:
        program = kernels_of(graph, target)
    except TunefarmError:
        return
    for calls in program.kernel_calls().values():
        kernel = calls[0].kernel
        try:
            why = scalar_work(lower(kernel, default_schedule(kernel, target)), target)
        except ScheduleError as error:
            why = f"no schedule fits: {error}"
        if why:
            yield f"{kernel.name}: {why}"


@pytest.mark.slow
@pytest.mark.parametrize("targets", [_WIDE, pytest.param(_SHORT, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "models",
    [
        pytest.param(_zoo, marks=pytest.mark.nightly),
        pytest.param(_cases, marks=pytest.mark.nightly),
        _some_cases,
    ],
)
def test_no_kernel_is_scalar_that_is_not_listed(
    models: Callable[[], Models], targets: Sequence[str], update_golden: bool
) -> None:
    listed = json.loads(_LIST.read_text())
    mine = [name for name, _ in models()]
    for target, found in _scalar_kernels(models(), targets).items():
        known: dict[str, int] = listed[target]
        more = {name: why for name, why in found.items() if len(why) > known.get(name, 0)}
        assert not more, f"these kernels fall into scalar loops on {target}: {more}"
        if update_golden:
            rest = {name: count for name, count in known.items() if name not in mine}
            counts = {name: len(why) for name, why in found.items()}
            listed[target] = dict(sorted({**rest, **counts}.items()))
            _LIST.write_text(json.dumps(listed, indent=1) + "\n")
