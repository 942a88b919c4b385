"""The whole model has the last word: its builds with one set of schedules and another, interleaved.

    what finalists settled -> kernels exchanged in the running model -> the whole model, confirmed
                                            | slower than untuned      <-  |
                                            v
                             what is faster beyond doubt -> the default schedules

On machines of another kind than this one a node of a cluster compares them, where the nodes of the
runner can be called (`tunefarm.measure.farm.runner.CallsNodes`):

    specs -> artifacts, as bytes -> a node of the target's kind -> their latencies
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from tunefarm import compiler
from tunefarm.compiler.errors import MeasureError, TunefarmError, with_count
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.runtime.artefact import write_artefact
from tunefarm.compiler.runtime.artefact.seal import code_digest
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.schedule import ChooseSchedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.settings import Settings
from tunefarm.db import queries
from tunefarm.db.records import BestRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import Comparison
from tunefarm.measure.farm.runner import CallsNodes
from tunefarm.tuner.building.apply_best import choose_from
from tunefarm.tuner.building.lowered import compile_with
from tunefarm.tuner.building.report import BuildReport, build_report
from tunefarm.tuner.confirm.exchange import BUILD_NAMES, DEFAULT, TUNED, InModel
from tunefarm.tuner.confirm.finalists import Settled
from tunefarm.tuner.confirm.kernel_choices import KernelChoices
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
ExchangeSpecs: TypeAlias = Callable[[Sequence[ExecutableSpec]], Mapping[str, InModel]]
"""What the kernels of builds show in the running model, by workload key, see `exchange_kernels`;
nothing where there is no time."""


@dataclass(frozen=True, slots=True)
class ModelBuilds:
    """Builds of one model with schedules of its own choice (`numerics`: the settings' if None)."""

    graph: Graph
    settings: Settings
    numerics: Numerics | None
    store: Store

    def compile(
        self, target: Target, choose: ChooseSchedule | None
    ) -> tuple[ExecutableSpec, BuildReport]:
        """The model's code and how it was built; the constants before packing are not kept."""
        built = compile_with(self.graph, choose, self.settings, target, numerics=self.numerics)
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
class Exchanged:
    """What the kernels showed when they were exchanged in the running model, by workload key; or
    `why_not`."""

    kernels: Mapping[str, InModel] = field(default_factory=dict)
    why_not: str = ""

    def to_json(self) -> dict[str, Any]:
        """What the running model showed as JSON values: of each kernel the build that has the
        fastest schedule, and the time of the tuned one over the default one's, null where they are
        one schedule."""
        kernels = []
        for key, found in self.kernels.items():
            tuned = found.over_default.get(TUNED)
            figures = dict.fromkeys(("ratio", "low", "high"))
            if tuned is not None:
                figures = {"ratio": tuned.ratio, "low": tuned.low, "high": tuned.high}
            kernels.append({"key": key, "fastest": BUILD_NAMES[found.fastest], **figures})
        return {"why_not": self.why_not or None, "kernels": kernels}

    @property
    def summary(self) -> str:
        """The same in one line."""
        if not self.kernels:
            return f"kernels were not exchanged in the running model: {self.why_not}"
        lost = sum(found.fastest == DEFAULT for found in self.kernels.values())
        text = f"in the running model: {with_count(len(self.kernels), 'kernel')} exchanged"
        return f"{text}, {lost} of them faster with the default schedule"

    def taken(self, *, surely: bool = False) -> dict[str, int]:
        """The build that each kernel is taken from; with `surely` the default schedule stays where
        none is faster beyond doubt."""
        return {
            key: (found.surely if surely else found).fastest for key, found in self.kernels.items()
        }


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What is to be kept, and how it was found; `latency` is None where nothing was measured.

    `report` and `spec` are of the model that is applied from now on, which is the untuned one if
    it `is_untuned`: with default schedules.
    """

    bests: tuple[BestRecord, ...]
    report: BuildReport
    latency: ModelLatency | None
    spec: ExecutableSpec
    exchanged: Exchanged = field(default_factory=Exchanged)
    is_untuned: bool = False


@dataclass(frozen=True, slots=True)
class ConfirmModel:
    """Finds the better one of what was settled and what is applied so far, for the whole model.

    `untuned` is the untuned model. `compare` measures builds. `choices` are the records of its
    kernels, None where none is to go back to its default schedule; with them `exchange` measures
    kernels inside the model, or nothing for the reason `why_not`. `defaults` are records by which
    kernels whose finalists have not met go back to their default schedules.
    """

    builds: ModelBuilds
    target: Target
    untuned: ExecutableSpec
    settled: Sequence[Settled]
    compare: CompareSpecs
    notify: Callable[[str], None]
    choices: KernelChoices | None = None
    exchange: ExchangeSpecs | None = None
    why_not: str = ""
    defaults: Sequence[BestRecord] = ()

    def run(self) -> Confirmed:
        """What is to be kept. A model that is slower than the untuned one beyond doubt is not."""
        bests = tuple(item.best for item in self.settled)
        new, report = self._tuned(bests)
        confirmed_only = self.builds.choose(self.target, only_confirmed=True)
        old, former = self.builds.compile(self.target, confirmed_only)
        exchanged = self._exchanged(new, old)
        if self.choices is not None and exchanged.kernels:
            bests = self.choices.bests(exchanged.taken(), exchanged.kernels)
            new, report = self._tuned(bests)
        self.notify("measuring it and the untuned one, interleaved")
        found = Confirmed(bests, report, self.compare((self.untuned, new, old)), new, exchanged)
        found = self._without_claims(found, old)
        if self.choices is None:
            return self._or_former(found, old, former)
        if _loses(found):
            found = self._with_fewer(found, self.choices, old)
        found = self._or_former(found, old, former)
        if not _loses(found):
            return found
        return or_untuned(found, self.choices, self.builds, self.target, self.untuned, self.notify)

    def _tuned(self, bests: Sequence[BestRecord]) -> tuple[ExecutableSpec, BuildReport]:
        return self.builds.compile(self.target, self.builds.choose(self.target, settled=bests))

    def _exchanged(self, new: ExecutableSpec, old: ExecutableSpec) -> Exchanged:
        """What kernels show in the running model; a fault there leaves what the finalists said."""
        if self.exchange is None:
            return Exchanged(why_not=self.why_not)
        try:
            if code_digest([self.untuned]) == code_digest([new]):
                return Exchanged(why_not="every kernel has its default schedule")
            self.notify("exchanging kernels inside the running model")
            found = self.exchange((self.untuned, new, old))
        except TunefarmError as error:
            self.notify(f"kernels were not exchanged in the running model: {error.message}")
            return Exchanged(why_not=error.message)
        if not found:
            return Exchanged(why_not="there was no time")
        lost = sum(item.fastest != TUNED for item in found.values())
        if lost:
            verb = "loses" if lost == 1 else "lose"
            text = f"{with_count(lost, 'kernel')} of {len(found)} {verb} in the running model"
            self.notify(f"{text}: the faster schedules stay")
        return Exchanged(found)

    def _without_claims(self, found: Confirmed, old: ExecutableSpec) -> Confirmed:
        """The model with default schedules where nothing but the search speaks for others, unless
        it is faster than untuned with these beyond doubt."""
        decided = {best.key for best in found.bests}
        defaults = [best for best in self.defaults if best.key not in decided]
        if not defaults or found.latency is None or found.latency.compared.a_is_faster():
            return found
        kernels = with_count(len(defaults), "kernel")
        self.notify(f"the finalists of {kernels} have not met: their default schedules stay")
        bests = (*found.bests, *defaults)
        new, report = self._tuned(bests)
        latency = self.compare((self.untuned, new, old))
        return Confirmed(bests, report, latency, new, found.exchanged)

    def _with_fewer(
        self, slower: Confirmed, choices: KernelChoices, old: ExecutableSpec
    ) -> Confirmed:
        """The model with no other schedules than those that are faster in it beyond doubt."""
        exchanged = slower.exchanged
        taken = exchanged.taken(surely=True)
        if taken == exchanged.taken():
            return slower
        self.notify("the model is slower than untuned: measuring it with fewer new schedules")
        bests = choices.bests(taken, exchanged.kernels)
        new, report = self._tuned(bests)
        latency = self.compare((self.untuned, new, old))
        return Confirmed(bests, report, latency, new, exchanged)

    def _or_former(self, found: Confirmed, old: ExecutableSpec, former: BuildReport) -> Confirmed:
        """What was applied before, where the new model is slower."""
        if found.latency is None or not found.latency.is_slower:
            return found
        self.notify("the new schedules make the model slower: the former ones stay")
        store = self.builds.store
        kept = (item.incumbent for item in self.settled if _still_applies(store, item))
        return replace(found, bests=(*kept, *self.defaults), report=former, spec=old)


def or_untuned(
    slower: Confirmed,
    choices: KernelChoices,
    builds: ModelBuilds,
    target: Target,
    untuned: ExecutableSpec,
    notify: Callable[[str], None],
) -> Confirmed:
    """The untuned model; the slower one where not all default schedules have a record."""
    bests = choices.untuned()
    spec, report = builds.compile(target, builds.choose(target, settled=bests))
    if slower.latency is None or code_digest([spec]) != code_digest([untuned]):
        notify("the model is slower than untuned, and there is no record to go back to")
        return slower
    notify("no schedules make the model faster than untuned: the default ones stay")
    kept = Comparison(1.0, 1.0, 1.0, 0)
    latency = replace(slower.latency, is_slower=True, former=None, kept=kept)
    return Confirmed(bests, report, latency, spec, slower.exchanged, is_untuned=True)


def _loses(found: Confirmed) -> bool:
    """Whether the untuned model is faster than what is to be kept, beyond doubt."""
    return found.latency is not None and found.latency.applied.b_is_faster()


def unmeasured(
    builds: ModelBuilds,
    target: Target,
    settled: Sequence[Settled],
    defaults: Sequence[BestRecord],
    why_not: str,
) -> Confirmed:
    """What was settled stays, and `defaults` elsewhere: nothing at hand can measure the model."""
    bests = (*(item.best for item in settled), *defaults)
    spec, report = builds.compile(target, builds.choose(target, settled=bests))
    return Confirmed(bests, report, None, spec, Exchanged(why_not=why_not))


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
        write_artefact.save(spec, path)
        return path.read_bytes()
