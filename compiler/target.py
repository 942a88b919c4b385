"""Target: what the code generator must know of a CPU, and the key that records carry."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

_CACHE_ROOT = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU as the code generator sees it.

    `lanes` is the number of f32 elements in a vector register, `vector_registers` how many of
    those there are, caches are in bytes per core (L3: shared), `features` the LLVM feature names
    that the CPU has, sorted.
    """

    triple: str
    cpu: str
    features: tuple[str, ...]
    lanes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int

    @property
    def has_fma(self) -> bool:
        return "fma" in self.features or self.triple.startswith("aarch64")

    @property
    def key(self) -> str:
        """Identifies targets for which the same machine code is best, e.g. `znver3-1a2b3c4d`.

        The number of cores is left out: the thread count is a part of a record's key of its own.
        """
        facts = {name: value for name, value in asdict(self).items() if name != "cores"}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return f"{self.cpu}-{digest[:8]}"

    def to_json(self) -> dict[str, Any]:
        """The target as JSON values."""
        return {**asdict(self), "features": list(self.features)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Target:
        """The inverse of `to_json`."""
        return Target(**{**data, "features": tuple(data["features"])})


_BASELINE_FEATURES = {"x86_64": ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2"), "aarch64": ("neon",)}


def baseline_target(target: Target) -> Target:
    """What every CPU of the target's family can run, e.g. SSE2 for x86-64."""
    family = target.triple.split("-")[0]
    return replace(
        target,
        cpu={"x86_64": "x86-64"}.get(family, "generic"),
        features=_BASELINE_FEATURES.get(family, ()),
        lanes=4,
        vector_registers=32 if family == "aarch64" else 16,
        l1_bytes=32 * 1024,
        l2_bytes=256 * 1024,
        l3_bytes=4 * 1024 * 1024,
    )


def llvm_version() -> str:
    """The version of LLVM that makes and loads code, e.g. `20.1.8`."""
    return ".".join(map(str, llvm.llvm_version_info))


@cache
def host_target() -> Target:
    """The CPU that this process runs on."""
    features = tuple(sorted(name for name, on in llvm.get_host_cpu_features().items() if on))
    triple = llvm.get_process_triple()
    lanes, registers = _vector_facts(triple, features)
    return Target(
        triple=triple,
        cpu=llvm.get_host_cpu_name(),
        features=features,
        lanes=lanes,
        vector_registers=registers,
        l1_bytes=_cache_bytes(1, 32 * 1024),
        l2_bytes=_cache_bytes(2, 512 * 1024),
        l3_bytes=_cache_bytes(3, 8 * 1024 * 1024),
        cores=os.cpu_count() or 1,
    )


def _vector_facts(triple: str, features: tuple[str, ...]) -> tuple[int, int]:
    """f32 lanes and number of vector registers."""
    if triple.startswith(("aarch64", "arm64")):
        return 4, 32
    if "avx512f" in features and "avx512vl" in features:
        return 16, 32
    if "avx2" in features or "avx" in features:
        return 8, 16
    return 4, 16


def _cache_bytes(level: int, otherwise: int) -> int:
    """Size of the data or unified cache of `level` in bytes; `otherwise` where it is not told."""
    for entry in sorted(_CACHE_ROOT.glob("index*")):
        try:
            if int((entry / "level").read_text()) != level:
                continue
            if (entry / "type").read_text().strip() == "Instruction":
                continue
            return _parse_size((entry / "size").read_text().strip())
        except (OSError, ValueError):
            continue
    return otherwise


def _parse_size(text: str) -> int:
    """Bytes from the kernel's notation: 32K, 1M, 12345."""
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
