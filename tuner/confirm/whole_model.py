"""The whole model has the last word: its builds with one set of schedules and another, in turn.

On machines of another kind than this one a node of a cluster compares them, where the nodes of the
runner can be called (`tunefarm.measure.farm.runner.CallsNodes`):

    specs -> artifacts, as bytes -> a node of the target's kind -> their latencies
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from tunefarm import compiler
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.runtime.artefact import artefact
from tunefarm.compiler.runtime.artefact.code_digest import code_digest
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.choice import ChooseSchedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.settings import Settings
from tunefarm.db import queries
from tunefarm.db.records import BestRecord
from tunefarm.db.store import Store
from tunefarm.measure.farm.runner import CallsNodes
from tunefarm.tuner.building.apply_best import choose_from
from tunefarm.tuner.building.compile import compile_with
from tunefarm.tuner.building.report import BuildReport, build_report
from tunefarm.tuner.confirm.finalists import Settled
from tunefarm.tuner.confirm.latency import (
    COMPARISON,
    Agree,
    ModelLatency,
    compare_models,
    outputs_agree,
    outputs_near,
)

CompareSpecs: TypeAlias = Callable[[Sequence[ExecutableSpec]], ModelLatency]
"""Latencies of the untuned model, the tuned one and, if there is a third, the former one, each of
which may be one build with another."""


@dataclass(frozen=True, slots=True)
class ModelBuilds:
    """Builds of one model with schedules of its own choice (`numerics`: the settings' if None),
    its graph as the `plan` says."""

    graph: Graph
    settings: Settings
    numerics: Numerics | None
    store: Store
    plan: GraphPlan = DEFAULT_PLAN

    def compile(
        self, target: Target, choose: ChooseSchedule | None
    ) -> tuple[ExecutableSpec, BuildReport]:
        """The model's code and how it was built; the constants before packing are not kept."""
        limits = self.settings.limits.model_copy(update={"memory": None})  # to compare with
        settings = self.settings.model_copy(update={"limits": limits})
        built = compile_with(
            self.graph, choose, settings, target, numerics=self.numerics, plan=self.plan
        )
        return built.spec, build_report(built.spec.kernels, built.kernels)

    def choose(
        self,
        target: Target,
        *,
        only_confirmed: bool = False,
        settled: Iterable[BestRecord] = (),
    ) -> ChooseSchedule:
        """What a build applies: of the records, or before them of what was `settled`."""
        compile = self.settings.compile
        return choose_from(
            self.store,
            target,
            compile.threads,
            compile.numerics,
            only_confirmed=only_confirmed,
            settled=settled,
        )


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What is to be kept, and how it was found; `latency` is None where nothing was measured.

    `report` and `spec` are of the model that is applied from now on.
    """

    bests: tuple[BestRecord, ...]
    report: BuildReport
    latency: ModelLatency | None
    spec: ExecutableSpec


def confirm_model(
    builds: ModelBuilds,
    target: Target,
    untuned: ExecutableSpec,
    settled: Sequence[Settled],
    compare: CompareSpecs | None,
    notify: Callable[[str], None],
    before: ModelBuilds | None = None,
) -> Confirmed:
    """The better one of what was settled and what is applied so far, for the whole model.

    `compare` measures builds; None: no machine at hand can, and what was settled stays. `before`
    has the plan that was applied so far; the same if None.
    """
    bests = tuple(item.best for item in settled)
    new, report = builds.compile(target, builds.choose(target, settled=bests))
    if compare is None:
        return Confirmed(bests, report, None, new)
    applied = builds if before is None else before
    old, former = applied.compile(target, builds.choose(target, only_confirmed=True))
    notify("measuring it and the untuned one, interleaved")
    latency = compare((untuned, new, old))
    if latency.is_slower:
        notify("the new schedules make the model slower: the former ones stay")
        kept = [item.incumbent for item in settled if _still_applies(builds.store, item)]
        return Confirmed(tuple(kept), former, latency, old)
    return Confirmed(bests, report, latency, new)


def compare_here(seconds: float, agree: Agree) -> CompareSpecs:
    """A comparison on this machine that may take so many seconds."""

    def compare(specs: Sequence[ExecutableSpec]) -> ModelLatency:
        untuned, new, *former = (Executable(spec.of_tensors()) for spec in specs)
        options = replace(COMPARISON, max_seconds=seconds)
        return compare_models(untuned, new, former[0] if former else None, options, agree)

    return compare


def agreement(kernels: Iterable[FusedKernel]) -> Agree:
    """How outputs of builds with other schedules are compared: models with narrow operands round
    inside."""
    operands = (buffer for kernel in kernels for buffer in kernel.inputs)
    narrow = any(b.dtype.bytes < 4 and b.dtype is not DType.BOOL for b in operands)
    return outputs_near if narrow else outputs_agree


def _still_applies(store: Store, settled: Settled) -> bool:
    """Whether no other job has settled the task since the finalists met."""
    found = queries.best(store, settled.task.key)
    return found is None or found[0].schedule_hash == settled.incumbent.schedule_hash


_PATIENCE_SECONDS = 60.0  # next to those of the comparison: artifacts are moved and loaded
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
    found = runner.call_on(target.key, _COMPARE, arguments, seconds + _PATIENCE_SECONDS)
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
