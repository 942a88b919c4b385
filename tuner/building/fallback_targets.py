"""For which CPUs a model is built in addition to the one that it was tuned for."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.amx_state import TILE_FEATURES
from tunefarm.compiler.target import Target, baseline_target
from tunefarm.configs.settings import load_target

RARE_FEATURES = ("avx512fp16", "avxvnni")
"""What some CPUs lack that have all else that one with matrix tiles has: AVX512-VNNI and BF16."""
COMMON = ("x86-64-v3",)
"""Targets that most CPUs of a family have in common, the fastest first."""


def fallback_targets(target: Target) -> tuple[Target, ...]:
    """The targets of variants for other CPUs, the fastest first; the last one runs on all.

    What a CPU has without its matrix tiles, which a kernel or a virtual machine may withhold, and
    others lack; for shorter vectors what most CPUs of the family have, where the target has all of
    that; and the family's baseline.
    """
    found = []
    if target.matrix_tiles is not None:
        kept = (name for name in target.features if not name.startswith(TILE_FEATURES))
        found.append(
            replace(target, features=tuple(name for name in kept if name not in RARE_FEATURES))
        )
    for name in COMMON:
        common = Target.from_json(load_target(name).model_dump())
        of_family = common.triple.split("-")[0] == target.triple.split("-")[0]
        contained = of_family and set(common.features) <= set(target.features)
        if contained and common.vector_bytes < target.vector_bytes:
            found.append(replace(common, triple=target.triple, cores=target.cores))
    return (*found, baseline_target(target))
