"""What features of a CPU need of others: LLVM ends the process for code that lacks them.

An instruction set that builds on another one is off where that one is (LLVM's X86.td); code that
was made for it is then cut into pieces that there are no instructions for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

_NEEDS = {
    "avx": ("sse4.2",),
    "avx2": ("avx",),
    "fma": ("avx",),
    "f16c": ("avx",),
    "avx512f": ("avx2", "fma", "f16c"),
    **dict.fromkeys(("avxifma", "avxneconvert", "avxvnni"), ("avx2",)),
    **dict.fromkeys(("avxvnniint16", "avxvnniint8"), ("avx2",)),
    **dict.fromkeys(("avx512bf16", "avx512bitalg", "avx512fp16"), ("avx512bw",)),
    **dict.fromkeys(("avx512vbmi", "avx512vbmi2"), ("avx512bw",)),
}
_FAMILIES = {"avx512": "avx512f", "amx-": "amx-tile"}
"""What all features whose names begin so need."""
_VECTORS = {32: "avx", 64: "avx512f"}
"""What vectors of so many bytes need."""


def lacking_feature(features: Collection[str], vector_bytes: int) -> str:
    """What an x86 CPU of these features lacks for one of them, or for its vectors; "" if nothing.

    For example `avx512f needs fma`.
    """
    for bytes, needed in sorted(_VECTORS.items()):
        if vector_bytes >= bytes and needed not in features:
            return f"vectors of {vector_bytes} bytes need {needed}"
    for feature in sorted(features):
        for needed in _needs_of(feature):
            if needed not in features:
                return f"{feature} needs {needed}"
    return ""


def _needs_of(feature: str) -> Iterator[str]:
    yield from _NEEDS.get(feature, ())
    for start, needed in _FAMILIES.items():
        if feature.startswith(start) and feature != needed:
            yield needed
