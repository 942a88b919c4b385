"""What single contractions cost of the outputs, from one build whose contractions have switches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, sqrt

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.precision.contractions import Contraction, contractions
from tunefarm.compiler.plan.precision.switch_precisions import Switches, switched
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.precision import Calibration, Precision
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.calibration.data import Samples
from tunefarm.tuner.calibration.metric import Joints

SOLO_SAMPLES = 4
"""Runs that say what a contraction alone costs."""
MOST_NOISE = 0.015
"""Of the outputs in int8, over them: root of mean squares. It is what rounding of activations makes
of them; that of weights adds about as much. Beyond it classes begin to change."""
_OFF, _ON = np.zeros((), np.float32), np.ones((), np.float32)

Runs = list[dict[str, Array]]
Compile = Callable[[Graph], Executable]


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
