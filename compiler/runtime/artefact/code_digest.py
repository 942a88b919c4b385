"""Code digest: what a model runs, as one text. Two builds with the same digest are one build."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from tunefarm.compiler.runtime.artefact.file_header import json_text
from tunefarm.compiler.runtime.artefact.manifest import manifest_to_json
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec

_DESCRIPTIONS = frozenset(
    "name compiler_version llvm_version kernels arena_lower_bound numerics metadata".split()
)
"""What a manifest says of where the code is from and how good it is, and no run depends on."""


def code_digest(programs: Iterable[ExecutableSpec]) -> str:
    """The SHA-256, in hex digits, of a model's kernels, constants, steps and arena.

    It is equal for builds that are the same to the byte, whichever records they are from. The entry
    function follows from the steps; its seal names the records, so it is left out.
    """
    facts = [
        {name: value for name, value in described.items() if name not in _DESCRIPTIONS}
        for described in ({**manifest_to_json(s, ()), "parts": s.digests} for s in programs)
    ]
    return hashlib.sha256(json_text(facts)).hexdigest()
