"""Writing an artifact: its parts once each, the manifest, and the file in one piece."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.compiler.errors import ArtefactError, VerifyError, system_errors_as
from tunefarm.compiler.runtime.artefact.constants_check import large_constants
from tunefarm.compiler.runtime.artefact.file_header import (
    FORMAT,
    HEADER,
    LADDER,
    MAGIC,
    PROGRAMS,
    REPACKED,
    SUMMED,
    TWO_VARIANTS,
    json_text,
)
from tunefarm.compiler.runtime.artefact.manifest import (
    Part,
    Repacking,
    manifest_to_json,
    parts_to_json,
)
from tunefarm.compiler.runtime.artefact.repacking import (
    ITEM_SIZES,
    WORTH_REPACKING_BYTES,
    numbers_of,
    repacked,
)
from tunefarm.compiler.runtime.artefact.seal import (
    Content,
    content_digests,
    part_contents,
    seal_of,
)
from tunefarm.compiler.runtime.machine.in_threads import in_threads
from tunefarm.compiler.runtime.spec.executable_spec import (
    CallStep,
    ExecutableSpec,
    FunctionStep,
    LoopStep,
    aligned,
    made_for,
)
from tunefarm.compiler.runtime.spec.verify_spec import verify_programs
from tunefarm.compiler.types.denormals import has_denormals
from tunefarm.compiler.types.large_arrays import release
from tunefarm.compiler.types.packing import Packing
from tunefarm.compiler.types.structure import NO_STRUCTURE
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.compiler.types.winograd_filter import FILTER_DTYPE, FILTERS, transformed_shape


def save(
    spec: ExecutableSpec, path: str | PathLike[str], others: Sequence[ExecutableSpec] = ()
) -> None:
    """Write an executable to `path`, replacing a file there only when the new one is complete.

    `others` are more programs of the same model, for other CPUs or other sizes: each is taken where
    none of those before it can be, so that the preferred one comes first. Raises `ArtefactError`
    when the file cannot be written; what was at `path` is then unchanged. Raises `VerifyError` for
    a spec whose entry was not made for it, and for programs that are no list of one model's: nobody
    could load the file.
    """
    verify_programs((spec, *others))
    for variant in (spec, *others):
        if seal_of(variant) not in variant.entry:
            raise VerifyError(f"executable {variant.name}: its entry holds the seal of another one")
    parts = _PartList((spec, *others))
    variants = [
        manifest_to_json(variant, parts.add(variant, made_for(variant) == made_for(spec)))
        for variant in (spec, *others)
    ]
    checked = parts.with_sums(variants)
    manifest = {"parts": parts_to_json(checked), "variants": variants}
    write_file(Path(path), format_of((spec, *others), checked), manifest, parts.contents)


def write_file(
    path: Path, version: int, manifest: Mapping[str, Any], contents: Mapping[int, Content]
) -> None:
    """Write a file with a manifest and the parts of these offsets, see `save`."""
    text = json_text(manifest)
    data_start = aligned(HEADER.size + len(text))
    last = max(contents)
    end = data_start + last + len(contents[last])
    header = HEADER.pack(MAGIC, version, 0, len(text), end, hashlib.sha256(text).digest())
    pieces = [(content, data_start + offset) for offset, content in contents.items()]
    with system_errors_as(ArtefactError, f"write {path}"):
        _write_atomically(path, header + text, pieces, end)


class _PartList:
    """The parts of a file that is written, each content once; `contents` are those that the file
    holds, by their offset.

    Where programs are for several CPUs, a constant of a variant for another CPU than the first is
    made of the same numbers in another packing, if the file has them, or if only that CPU has it of
    the filter that it is a transform of: what several map from the file they share.
    """

    def __init__(self, programs: Sequence[ExecutableSpec]) -> None:
        self.parts: list[Part] = []
        self.contents: dict[int, Content] = {}
        self._numbers: dict[str, int] = {}  # by the content's digest
        self._packed: dict[tuple[int, str], tuple[int, int]] = {}  # part, m; by the numbers' digest
        self._stored: dict[int, tuple[Packing, Array]] = {}  # by the number of the part
        self._transformed: set[tuple[int, int]] = set()  # part, m; what is known of these
        self._shared = _is_of_several_targets(programs)
        users = {(made_for(each), digest) for each in programs for digest in each.digests}
        self._users = Counter(digest for _, digest in users)
        self._end = 0

    def add(self, variant: ExecutableSpec, is_first: bool) -> list[int]:
        """The numbers of a variant's parts; `is_first` if it is for the same CPU as the first."""
        contents = [variant.entry, *part_contents(variant.objects, variant.constants)]
        digests = (*content_digests([variant.entry]), *variant.digests)
        packings = self._worth_sharing(variant, digests) if self._shared else {}
        before = 1 + len(variant.objects)
        for place, (content, digest) in enumerate(zip(contents, digests, strict=True)):
            if digest in self._numbers:
                continue
            repacking, known = None, packings.get(place)
            if known is not None and not is_first:
                repacking = self._repacking(known, variant.constants[place - before], digest)
            self._numbers[digest] = number = len(self.parts)
            if repacking is not None:
                self.parts.append(Part(0, len(content), digest, repacking))
                continue
            self.parts.append(Part(self._end, len(content), digest))
            self.contents[self._end] = content
            self._end = aligned(self._end + len(content))
            if known is not None:
                self._stored[number] = known[1], variant.constants[place - before]
                self._packed.setdefault(known[0], (number, 0))
        return [self._numbers[digest] for digest in digests]

    def with_sums(self, variants: Sequence[Any]) -> list[Part]:
        """The parts, with the CRC-32 of those that may be checked while these variants run."""
        later = large_constants(variants, [part.bytes for part in self.parts])

        def with_sum(item: tuple[int, Part]) -> Part:
            number, part = item
            if number not in later or part.repacking is not None:
                return part
            content = self.contents[part.offset]
            summed = replace(part, crc32=zlib.crc32(content))
            release(len(content))
            return summed

        return in_threads(with_sum, enumerate(self.parts))

    def _worth_sharing(
        self, variant: ExecutableSpec, digests: Sequence[str]
    ) -> dict[int, tuple[tuple[int, str], Packing]]:
        """For the places of new constants: what their numbers are, and how they lie."""

        before = 1 + len(variant.objects)
        found = [
            (before + number, array, packing)
            for number, (array, packing) in enumerate(
                zip(variant.constants, variant.packings, strict=bool(variant.packings))
            )
            if array.nbytes >= WORTH_REPACKING_BYTES
            and array.itemsize in ITEM_SIZES
            and digests[before + number] not in self._numbers
        ]
        known = in_threads(lambda item: (item[1].itemsize, *numbers_of(*item[1:])), found)
        return {
            place: ((itemsize, digest), packing)
            for (place, _, _), (itemsize, digest, packing) in zip(found, known, strict=True)
        }

    def _repacking(
        self, known: tuple[tuple[int, str], Packing], array: Array, digest: str
    ) -> Repacking | None:
        """How the constant is made of one that the file holds; None if it cannot be."""

        key, packing = known
        if self._users[digest] == 1:
            self._learn_transforms(packing.shape, array.dtype)
        if key not in self._packed:
            return None
        source, winograd = self._packed[key]
        before, stored = self._stored[source]
        found = Repacking(source, array.itemsize, before, packing, winograd)
        same = hashlib.sha256(repacked(stored, found).data).hexdigest() == digest
        return found if same else None

    def _learn_transforms(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        """Know the transforms of this shape of filters that the file holds.

        A process that loads them may flush denormal numbers: where there are some, others result.
        """
        m = shape[0] - 2 if len(shape) == 4 else 0
        if m not in FILTERS or dtype != FILTER_DTYPE:
            return
        plain = Packing(shape, (), tuple(range(len(shape))))
        for number, (before, stored) in self._stored.items():
            is_filter = stored.dtype == dtype and before.shape[2:] == (3, 3)
            if not is_filter or transformed_shape(before.shape, m) != shape:
                continue
            if (number, m) in self._transformed:
                continue
            self._transformed.add((number, m))
            made = repacked(stored, Repacking(number, dtype.itemsize, before, plain, m))
            if has_denormals(stored) or has_denormals(made.view(dtype)):
                continue
            digest = hashlib.sha256(made.data).hexdigest()
            self._packed.setdefault((dtype.itemsize, digest), (number, m))


def format_of(
    programs: Sequence[ExecutableSpec], parts: Sequence[Part], parents: Sequence[str] = ()
) -> int:
    """The first format that has what these programs need."""
    if any(part.repacking is not None and part.repacking.winograd for part in parts):
        return FORMAT
    if any(part.crc32 is not None for part in parts):
        return SUMMED
    if parents or any(part.repacking is not None for part in parts):
        return REPACKED
    preferred = [program for program in programs if not program.fallback]
    if len(preferred) > 1 or any(map(_is_new, programs)):
        return PROGRAMS
    return LADDER if len(programs) > 2 else TWO_VARIANTS


def _is_of_several_targets(programs: Sequence[ExecutableSpec]) -> bool:
    """Whether there are programs for several CPUs, apart from fallbacks."""
    return len({program.target for program in programs if not program.fallback}) > 1


def _is_new(program: ExecutableSpec) -> bool:
    """Whether a program has what no format before `PROGRAMS` had."""
    guarded = (step for step in program.steps if isinstance(step, CallStep | FunctionStep))
    return bool(
        program.guards
        or not program.signature.is_fixed
        or program.structure != NO_STRUCTURE
        or program.functions
        or any(step.guards for step in guarded)
        or any(isinstance(step, LoopStep) for step in program.steps)
    )


def _write_atomically(
    path: Path, head: bytes, pieces: Sequence[tuple[Content, int]], size: int
) -> None:
    """Write a file of `size` bytes: its `head`, and contents at their offsets."""
    import tempfile  # these are for writing only, and most processes only read

    from tunefarm.compiler.runtime.artefact.large_files import reserve, write_pieces

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            number = file.fileno()
            reserve(number, size)
            write_pieces(number, [(head, 0), *pieces], release)
            os.fsync(number)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    """The process's file mode mask (it can only be read by setting it)."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
