"""The model whose contractions are lowered: what plans make of it, compiled and timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import consumers
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.pipeline import Compiled
from tunefarm.compiler.plan.apply_precisions import apply_precisions
from tunefarm.compiler.plan.precision.contractions import Contraction, contractions
from tunefarm.compiler.plan.precision.quantise import NARROW_READERS
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.profile import COPY
from tunefarm.compiler.schedule.schedule import ChooseSchedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Numerics
from tunefarm.compiler.types.precision import Calibration, Precision, PrecisionPlan
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.configs.settings import Settings
from tunefarm.tuner.building.lowered import compile_with
from tunefarm.tuner.confirm.latency import aligned_inputs, pinned
from tunefarm.tuner.precision.search import Assignment
from tunefarm.tuner.records.size_ranges import points_of

# What contractions cost in each precision: the kernels of uniform builds, one model per
# precision.

BYTES = {Precision.F32: 4, Precision.BF16: 2, Precision.F16: 2, Precision.INT8: 1}
_ROUNDS = 3
_RUNS = 6
_COPIED_BYTES = 1 << 20


def marked(prepared: Graph) -> Graph:
    """The graph whose contractions have their identities as sources: kernels then name them."""
    names = {item.value: item.identity for item in contractions(prepared)}
    nodes = tuple(replace(node, source=names.get(node.output, "")) for node in prepared.nodes)
    return replace(prepared, nodes=nodes)


@dataclass(frozen=True, slots=True)
class UniformTimes:
    """Seconds of a build in one precision: of each contraction by identity, and of all else."""

    contractions: Mapping[str, float]
    rest: float


def uniform_times(
    builds: Mapping[Precision, Compiled], inputs: Mapping[str, Array]
) -> dict[Precision, UniformTimes]:
    """The times of uniform builds of a marked graph, run in turn on these inputs.

    Calls that convert what a contraction made count as its own.
    """
    executables = {
        precision: Executable(built.spec.of_tensors()) for precision, built in builds.items()
    }
    timed: dict[Precision, list[list[float]]] = {precision: [] for precision in builds}
    with pinned(max(executable.threads for executable in executables.values())):
        for _ in range(_ROUNDS):
            for precision, executable in executables.items():
                steps = executable.profile(inputs, repeat=_RUNS).steps
                timed[precision].append([step.seconds for step in steps if step.name != COPY])
    return {
        precision: _by_contraction(
            built, [median(samples) for samples in zip(*timed[precision], strict=True)]
        )
        for precision, built in builds.items()
    }


def _by_contraction(built: Compiled, seconds: Sequence[float]) -> UniformTimes:
    latencies = {report.key: report.latency for report in built.spec.kernels}
    calls = [call for call in built.program.calls if isinstance(call, KernelCall)]
    found: dict[str, float] = {}
    for call, timed in zip(calls, seconds, strict=True):
        identities = [*filter(None, call.sources)] or [""]  # several of a chain
        share = (latencies[call.key] or timed) / len(identities)
        for identity in identities:
            found[identity] = found.get(identity, 0.0) + share
    rest = found.pop("", 0.0)
    return UniformTimes(found, rest)


@dataclass(frozen=True, slots=True)
class Conversion:
    """A value that contractions read: its elements, the contractions, and whether others read it
    that need f32 (`wide`) or can do with 8 bits (`narrow`)."""

    elements: int
    readers: tuple[str, ...]
    wide: bool
    narrow: bool

    def seconds(self, assignment: Assignment, seconds_per_byte: float) -> float:
        """What converting it costs with this plan."""
        wanted = {assignment.get(name, Precision.F32) for name in self.readers}
        if self.wide or (self.narrow and wanted != {Precision.INT8}):
            wanted.add(Precision.F32)
        if len(wanted) == 1:
            return 0.0  # its producer writes that form
        moved = sum(
            BYTES[Precision.F32] + BYTES[precision]
            for precision in wanted
            if precision is not Precision.F32
        )
        return self.elements * moved * seconds_per_byte


def conversions(prepared: Graph) -> tuple[Conversion, ...]:
    """Every value that contractions of the graph read, but constants."""
    found = {item.value: item for item in contractions(prepared) if not item.rounds_states}
    readers = consumers(prepared)
    values: dict[str, list[Contraction]] = {}
    for item in found.values():
        for name in dict.fromkeys((item.data, item.weight)):
            if name not in prepared.constants:
                values.setdefault(name, []).append(item)
    result = []
    for name, items in values.items():
        others = [node for node in readers[name] if node.output not in found]
        narrow = [node for node in others if node.operator in NARROW_READERS]
        result.append(
            Conversion(
                elements=prepared.types[name].size,
                readers=tuple(item.identity for item in items),
                wide=name in prepared.outputs or len(narrow) < len(others),
                narrow=bool(narrow),
            )
        )
    return tuple(result)


def copy_seconds_per_byte() -> float:
    """Seconds that this machine takes to read or write a byte, of what fits its caches."""
    source = np.zeros(_COPIED_BYTES, np.uint8)
    target = np.empty_like(source)
    samples = []
    for _ in range(20):
        begin = perf_counter()
        np.copyto(target, source)
        samples.append(perf_counter() - begin)
    return median(samples) / (2 * _COPIED_BYTES)


Say: TypeAlias = Callable[[str], None]


@dataclass(slots=True)
class PlannedModel:
    """A prepared graph, and how what plans make of it is compiled."""

    prepared: Graph
    settings: Settings
    target: Target
    choose: ChooseSchedule | None
    say: Say
    found: tuple[Contraction, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.found = contractions(self.prepared)

    def narrow_kinds(self, calibration: Calibration | None) -> list[Precision]:
        """The precisions below f32 that this target has instructions for."""
        has = self.target.dot_products
        kinds = []
        if has(DType.BF16, DType.BF16, DType.F32):
            kinds.append(Precision.BF16)
        if has(DType.F16, DType.F16, DType.F32):
            kinds.append(Precision.F16)
        if calibration is not None and any(item.quantisable for item in self.found):
            kinds.append(Precision.INT8)
        return kinds

    def assignment(self, kind: Precision) -> dict[str, Precision]:
        """Every contraction that can be in this precision is."""
        return {item.identity: kind for item in self.found if item.has(kind)}

    def lowered(
        self, assignment: Assignment, calibration: Calibration | None
    ) -> tuple[Graph, Numerics]:
        """The model in these precisions."""
        return apply_precisions(self.prepared, PrecisionPlan(dict(assignment), calibration))

    def part_of(self, share: int) -> Settings:
        """The settings of one of so many jobs that have the budget together."""
        search = self.settings.search
        trials = search.total_trials
        update = {
            "total_trials": None if trials is None else max(1, trials // share),
            "minutes": None if search.minutes is None else search.minutes / share,
        }
        return self.settings.model_copy(update={"search": search.model_copy(update=update)})

    def compiled(self, graph: Graph, numerics: Numerics = DEFAULT_NUMERICS) -> Compiled:
        """A graph built with the best schedules on record."""
        return compile_with(graph, self.choose, self.settings, self.target, numerics=numerics)

    def executable(self, graph: Graph, numerics: Numerics = DEFAULT_NUMERICS) -> Executable:
        """The same, loaded."""
        return Executable(self.compiled(graph, numerics).spec.of_tensors())

    def _greatest_sizes(self) -> Mapping[str, int]:
        """Those at which kernels on record were measured."""
        return points_of(self.prepared.signature)[-1].symbols

    def times(
        self, kinds: Sequence[Precision], calibration: Calibration | None
    ) -> dict[Precision, UniformTimes]:
        """What the contractions take in each precision."""
        self.say("timing the kernels of each precision")
        graph = marked(self.prepared)
        builds = {}
        for kind in kinds:
            plan = PrecisionPlan(self.assignment(kind), calibration)
            builds[kind] = self.compiled(*apply_precisions(graph, plan))
        executable = Executable(builds[Precision.F32].spec.of_tensors())
        inputs = aligned_inputs(executable, self.settings.search.seed, self._greatest_sizes())
        return uniform_times(builds, inputs)
