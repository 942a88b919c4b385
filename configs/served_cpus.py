"""CPUs that have no target of their own, by the names that LLVM and others give them.

Each has all that its target needs, so code for that runs there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_SERVED: Final = {
    "host": "native",
    "x86-64-v2": "nehalem westmere silvermont goldmont sandybridge ivybridge",
    "x86-64-v3": "haswell broadwell skylake alderlake znver1 znver2 znver3 zen zen2 zen3",
    "x86-64-v4": "skylake-avx512 skx",
    "cascadelake": "cooperlake",
    "icelake-server": "icelake-client rocketlake tigerlake",
    "sapphirerapids": "emeraldrapids graniterapids",
    "znver4": "zen4",
    "znver5": "zen5",
    "armv8-neon": "aarch64 arm64 armv8 armv8-a cortex-a53 cortex-a72 graviton rpi4",
    "neoverse-n1": "cortex-a76 cortex-a78 graviton2 altra apple-m1 rpi5",
    "neoverse-v1": "neoverse-n2 neoverse-v2 graviton3 graviton4 grace apple-m2 apple-m3 apple-m4",
}

SERVED_BY: Final[Mapping[str, str]] = MappingProxyType(
    {name: target for target, names in _SERVED.items() for name in names.split()}
)
"""The named target whose code such a CPU runs best, by its name in small letters."""
