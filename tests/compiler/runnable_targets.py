"""The CPUs whose code runs here: this one, and lesser ones that it can stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tests.targets import target_named
from tunefarm.compiler.runtime.machine.cpu_features import ARM_FEATURES, X86_FEATURES
from tunefarm.compiler.target import Target, baseline_target, host_target

_NAMED = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
_AVX2 = "x86-64-v3"
_AVX_LACKS = {"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}


@cache
def runnable_targets() -> Sequence[Target]:
    """This CPU, and each lesser one whose code it runs: there masks, registers or vectors lack."""
    host = host_target()
    named = [target_named(name) for name in _NAMED]
    avx2 = next(target for target in named if target.cpu == _AVX2)
    avx = tuple(name for name in avx2.features if name not in _AVX_LACKS)
    lesser = [
        *named,
        replace(avx2, cpu="alderlake", features=tuple(sorted({*avx2.features, "avxvnni"}))),
        replace(avx2, cpu="sandybridge", features=avx),
        baseline_target(host),
    ]
    return (host, *(target for target in lesser if _runs(host, target)))


def unlike_any(target: Target) -> Target:
    """The target with a feature that no CPU has next to its others, as a C library checks them."""
    known = X86_FEATURES if target.triple.startswith("x86_64") else ARM_FEATURES
    return replace(
        target, features=(*target.features, [f for f in known if f not in target.features][-1])
    )


def _runs(host: Target, target: Target) -> bool:
    architecture = host.triple.partition("-")[0]
    return target.triple.startswith(architecture) and set(target.features) <= set(host.features)
