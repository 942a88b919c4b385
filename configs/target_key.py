"""The key of a target: what of its JSON description changes the code, or its speed for good.

    platform, CPU name, vectors, matrix tiles, features that code can use  ->  znver3-1a2b3c4d

Left out is what a hypervisor shows today and hides tomorrow: cache sizes, the number of cores, and
features that no generated code uses (for encryption, random numbers, memory protection, saving of
registers). The operating system's version and the vendor in LLVM's triple are left out too.

Both the compiler's targets and the rows of a database have such descriptions, so the rule is here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

_OF_X86 = ("sse", "ssse", "avx", "amx-", "fma", "f16c", "xop", "bmi", "lzcnt", "popcnt", "gfni")
_OF_X86_LATER = ("egpr", "ndd", "ccmp", "nf", "zu")  # APX: more registers, three operands
_OF_ARM = ("neon", "sve", "sme", "dotprod", "fullfp16", "fp16fml", "bf16", "i8mm", "rdm")
_OF_CODE = (*_OF_X86, *_OF_X86_LATER, *_OF_ARM)
"""What the names of the features begin with that instructions of generated code depend on."""

_UNUSED = ("avx10.1", "avx512vp2intersect")
"""Of those: a name for features that have names of their own, and what LLVM has no pattern for."""

_USUAL_TILES = (8, 16, 64)  # what a description means that says nothing of tiles

_CPU_CHARACTERS = 100  # of a name; a database has room for keys of 200

_FIELDS: Mapping[str, type] = {
    "triple": str,
    "cpu": str,
    "features": list,
    "lanes": int,
    "vector_registers": int,
}


def target_key(description: object) -> str | None:
    """The key of the target with these JSON values, e.g. `znver3-1a2b3c4d`.

    None of what is no description of a target.
    """
    if not isinstance(description, Mapping):
        return None
    if not all(isinstance(description.get(name), kind) for name, kind in _FIELDS.items()):
        return None
    cpu, tiles = description["cpu"], description.get("tile_palette", _USUAL_TILES)
    if not (cpu.isprintable() and 0 < len(cpu) <= _CPU_CHARACTERS):
        return None
    if not all(isinstance(name, str) for name in description["features"]):
        return None
    if not isinstance(tiles, list | tuple):
        return None
    digest = hashlib.sha256(json.dumps(code_facts(description), sort_keys=True).encode())
    return f"{cpu}-{digest.hexdigest()[:8]}"


def code_facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """What of a target's description is in its key, by name."""
    features = code_features(description["features"])
    facts = {
        "platform": platform_name(description["triple"]),
        "cpu": description["cpu"],
        "features": features,
        "lanes": description["lanes"],
        "vector_registers": description["vector_registers"],
    }
    if "amx-tile" in features:
        facts["tile_palette"] = list(description.get("tile_palette", _USUAL_TILES))
    return facts


def code_features(features: Collection[str]) -> list[str]:
    """Those of a CPU's features that generated code can use, sorted."""
    return sorted(
        {name for name in features if name.startswith(_OF_CODE) and not name.startswith(_UNUSED)}
    )


def platform_name(triple: str) -> str:
    """Architecture and operating system, e.g. `x86_64 linux`; versions and vendor left out."""
    parts = triple.split("-")
    architecture = {"arm64": "aarch64", "amd64": "x86_64"}.get(parts[0], parts[0])
    system = (parts[2] if len(parts) > 2 else "unknown").rstrip("0123456789.")
    return f"{architecture} {system}"
