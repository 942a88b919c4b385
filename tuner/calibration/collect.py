"""Runs of the f32 model whose inner values are collected: what int8 contractions will read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, sqrt

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.precision.contractions import Contraction, contractions
from tunefarm.compiler.plan.precision.switch_precisions import Switches, switched
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.precision import Calibration, Precision
from tunefarm.compiler.types.signature import SizedPort
from tunefarm.compiler.types.structure import NO_STRUCTURE
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.calibration.data import Samples
from tunefarm.tuner.calibration.metric import Joints
from tunefarm.tuner.calibration.ranges import Method, ValueRange

MOST_BYTES = 512 * 1024 * 1024
"""Of the values that one executable gives in addition to the model's outputs."""

Compile = Callable[[Graph], Executable]


def calibrate(prepared: Graph, samples: Samples, method: Method, compile: Compile) -> Calibration:
    """The ranges of all that the quantisable contractions of a prepared graph read.

    `compile` makes an executable of a graph; there are several, with some of the values each, where
    all at once would take too much memory. Raises SettingsError for a model without contractions.
    """
    found = [item for item in contractions(prepared) if item.quantisable]
    if not found:
        raise SettingsError(
            "the model has no contraction that could be computed in int8",
            hint="build it with --precision default",
        )
    values = {item.data: item.data_identity for item in found if not item.rounds_states}
    ranges = {name: ValueRange() for name in values}
    inner = [name for name in values if name not in prepared.inputs]
    for name in values.keys() - set(inner):
        for run in samples:
            ranges[name].add(run[name])
    for batch in _batches(prepared, inner):
        executable = compile(with_outputs(prepared, batch))
        for run in samples:
            for name, array in executable.run(run).items():
                ranges[name].add(array)
    by_identity = {values[name]: found.range(method) for name, found in ranges.items()}
    return Calibration(str(method), len(samples), samples.digest, by_identity)


def with_outputs(graph: Graph, values: Iterable[str]) -> Graph:
    """The part of a graph that computes these values; all inputs stay.

    Where the model has dynamic shapes they are given without padding, and what the graph
    computes of sizes and conditions stays, too.
    """
    graph = replace(graph, structure=NO_STRUCTURE)
    names, signature = tuple(values), graph.signature
    if graph.is_fixed:
        return dead_code.run(replace(graph, outputs=names))
    former = {port.name for port in signature.outputs}
    computed = (name for name in graph.outputs if name not in former)
    ports = tuple(_port(graph, name) for name in names)
    outputs = tuple(dict.fromkeys((*names, *computed)))
    shown = replace(graph, outputs=outputs, dynamic=replace(signature, outputs=ports))
    return dead_code.run(shown)


def _port(graph: Graph, name: str) -> SizedPort:
    """A value as an output: of its padding nothing is shown, if it is known."""
    type = graph.types[name]
    return SizedPort(name, type.dtype, type.true_shape, type.dims)


def _batches(graph: Graph, values: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in values:
        bytes = graph.types[name].bytes
        if batch and size + bytes > MOST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += bytes
    if batch:
        yield batch


# What single contractions cost of the outputs, from one build whose contractions have switches.

SOLO_SAMPLES = 4
"""Runs that say what a contraction alone costs."""
MOST_NOISE = 0.015
"""Of the outputs in int8, over them: root of mean squares. It is what rounding of activations makes
of them; that of weights adds about as much. Beyond it classes begin to change."""
_OFF, _ON = np.zeros((), np.float32), np.ones((), np.float32)

Runs = list[dict[str, Array]]


@dataclass(slots=True)
class SoloRuns:
    """Outputs over some samples, with what single contractions read rounded to a precision.

    `outputs` of None are those in f32; `joints` are where they consist of parts.
    """

    samples: Samples
    executable: Executable
    switches: Switches
    joints: Joints
    _off: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        self._off = dict.fromkeys(self.switches.values(), _OFF)

    @staticmethod
    def of(
        prepared: Graph,
        kinds: Collection[Precision],
        calibration: Calibration | None,
        samples: Samples,
        compile: Compile,
    ) -> SoloRuns:
        """Those of a prepared graph; int8 needs a calibration."""
        graph, switches = switched(prepared, kinds, calibration)
        return SoloRuns(samples, compile(graph), switches, Joints.of(prepared))

    def outputs(self, identity: str | None, kind: Precision = Precision.F32) -> Runs:
        """Of each sample. Raises KeyError for what has no switch."""
        on = {} if identity is None else {self.switches[identity, kind]: _ON}
        runs = ({**run, **self._off, **on} for run in self.samples)
        return [
            {name: array.copy() for name, array in self.executable.run(run).items()} for run in runs
        ]


def too_sensitive(
    prepared: Graph, calibration: Calibration, samples: Samples, compile: Compile
) -> list[Contraction]:
    """The contractions of a prepared graph for which 8 bits are too few."""
    few = samples.spread(SOLO_SAMPLES)
    runs = SoloRuns.of(prepared, [Precision.INT8], calibration, few, compile)
    able = [item for item in contractions(prepared) if item.quantisable]
    return too_noisy(able, noises(runs, Precision.INT8))


def noises(runs: SoloRuns, kind: Precision) -> dict[str, float]:
    """What each contraction in this precision leaves of noise in the outputs, by identity."""

    def parts(identity: str | None, kind: Precision = Precision.F32) -> Runs:
        return [runs.joints.apart(run) for run in runs.outputs(identity, kind)]

    expected = parts(None)
    identities = [name for name, other in runs.switches if other is kind]
    return {name: noise(parts(name, kind), expected) for name in identities}


def noise(found: Sequence[Mapping[str, Array]], expected: Sequence[Mapping[str, Array]]) -> float:
    """The root of mean squares of differences over that of the values, of the worst float output;
    what is not finite is passed over."""
    shares = []
    for name, first in expected[0].items():
        if first.dtype.kind not in "fV":
            continue
        wanted = _values(name, expected)
        differences = _values(name, found) - wanted
        finite = np.isfinite(differences)
        scale = float(np.square(wanted[finite]).sum())
        error = float(np.square(differences[finite]).sum())
        shares.append(sqrt(error / scale) if scale else 0.0)
    return max(shares, default=0.0)


def _values(name: str, runs: Sequence[Mapping[str, Array]]) -> npt.NDArray[np.float64]:
    """All elements of an output, whose shape may be another in each run."""
    return np.concatenate([run[name].reshape(-1).astype(np.float64) for run in runs])


def too_noisy(
    contractions: Sequence[Contraction], noises: Mapping[str, float], most: float = MOST_NOISE
) -> list[Contraction]:
    """The contractions that must not be rounded so that together they stay within `most`.

    Noises of several are those of random sign: squares add up. First go those that make most noise
    for what they multiply, so that the work that is lost is small.
    """
    able = [item for item in contractions if noises.get(item.identity)]
    order = sorted(able, key=lambda item: -(noises[item.identity] ** 2) / max(item.work, 1))
    kept = 0
    while sqrt(fsum(noises[item.identity] ** 2 for item in order[kept:])) > most:
        kept += 1
    return order[:kept]
