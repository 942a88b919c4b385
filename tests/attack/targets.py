"""The targets that attacks build for by turns: the CPU that they run on, and lesser ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from compiler.target import Target, baseline_target, host_target
from configs.settings import load_target
from tests.attack.attack import Outcome

_NAMED = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
_AVX2 = "x86-64-v3"
_AVX_LACKS = {"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}


def drawn_target(seed: int) -> Target:
    """What the attempt of this seed builds for: all that this CPU can run come equally often."""
    return random.Random(f"target of {seed}").choice(runnable_targets())


def told_of_target(outcome: Outcome, seed: int) -> Outcome:
    """What went wrong in the attempt of this seed, with what was built for."""
    return replace(outcome, detail=f"built for {drawn_target(seed).cpu}\n{outcome.detail}")


@cache
def runnable_targets() -> Sequence[Target]:
    """This CPU, and each lesser one whose code it runs: there masks, registers or vectors lack."""
    host = host_target()
    named = [Target.from_json(load_target(name).model_dump()) for name in _NAMED]
    avx2 = next(target for target in named if target.cpu == _AVX2)
    avx = tuple(name for name in avx2.features if name not in _AVX_LACKS)
    lesser = [
        *named,
        replace(avx2, cpu="alderlake", features=tuple(sorted({*avx2.features, "avxvnni"}))),
        replace(avx2, cpu="sandybridge", features=avx),
        baseline_target(host),
    ]
    return (host, *(target for target in lesser if _runs(host, target)))


def _runs(host: Target, target: Target) -> bool:
    architecture = host.triple.partition("-")[0]
    return target.triple.startswith(architecture) and set(target.features) <= set(host.features)
