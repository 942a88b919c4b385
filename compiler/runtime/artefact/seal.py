"""Seal: what a model's code says of the manifest that belongs to it.

Code has offsets, sizes and the CPU's features built in, and the manifest says them again for
whoever provides the memory. So the entry function's object code also holds a SHA-256 of all that
the manifest says of its variant, and of the other code and the constants: where the two differ, the
manifest is not the one that the code was made with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tunefarm.compiler.runtime.artefact.file_header import json_text
from tunefarm.compiler.runtime.artefact.manifest import manifest_to_json
from tunefarm.compiler.runtime.machine.in_threads import in_threads
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec, ObjectPart
from tunefarm.compiler.types.large_arrays import release
from tunefarm.compiler.types.tensor_type import Array, bytes_of

Content: TypeAlias = bytes | memoryview


def seal_of(spec: ExecutableSpec) -> bytes:
    """The seal that the entry of `spec` must hold."""
    return seal(manifest_to_json(spec, ()), spec.digests)


def seal(variant: Mapping[str, Any], digests: Sequence[str]) -> bytes:
    """The seal of a variant's manifest, whatever numbers its parts have in the file.

    `digests` are those of its parts after the entry.
    """
    facts = {**variant, "parts": list(digests)}
    return hashlib.sha256(json_text(facts)).digest()


def part_digests(objects: Sequence[ObjectPart], constants: Sequence[Array]) -> tuple[str, ...]:
    """The `digests` of an executable with these objects and constants."""
    return content_digests(part_contents(objects, constants))


def part_contents(objects: Sequence[ObjectPart], constants: Sequence[Array]) -> list[Content]:
    """What the parts after the entry hold."""
    return [
        *(part.code for part in objects),
        *(bytes_of(array) for array in constants),
    ]


def content_digests(contents: Sequence[Content]) -> tuple[str, ...]:
    """The SHA-256 of each, in hex digits."""
    largest_first = sorted(range(len(contents)), key=lambda number: -len(contents[number]))

    def digest(number: int) -> str:
        found = hashlib.sha256(contents[number]).hexdigest()
        release(len(contents[number]))
        return found

    found = in_threads(digest, largest_first)
    by_number = dict(zip(largest_first, found, strict=True))
    return tuple(by_number[number] for number in range(len(contents)))


# Code digest: what a model runs, as one text. Two builds with the same digest are one build.

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
