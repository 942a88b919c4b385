"""Artifact: a compiled model as one file of machine code, packed weights and a JSON manifest.

    bytes 0-7     magic "TUNEFARM"
    8-11          format version (all numbers little endian)
    12-15         zero
    16-23         bytes of the manifest
    24-31         bytes of the file
    32-63         SHA-256 of the manifest
    64-           manifest (JSON), then zeros up to a multiple of 64
    then          the parts: entry functions, kernels' object code, constants; each starts at a
                  multiple of 64, with zeros between, and the manifest has the SHA-256 of each, of
                  large constants also the CRC-32

The manifest lists the variants of the model, its programs, the preferred one first; others may be
for CPUs that lack what that one needs, the fastest first, or for other sizes of the inputs. What
several have in common is one part. Where targets want the numbers of a constant in other packings,
the file has one of them, and the manifest says how another is made of it when the file is loaded,
see `tunefarm.compiler.runtime.artefact.repacking`.

A manifest may name its `parents`: the SHA-256 of the manifest of the artifact that this one
replaces, and of those before.

Every byte is covered by a check (of large constants it is that of the CRC-32 and may end later, see
`ConstantsCheck`), the same model gives the same bytes, and constants are mapped into memory rather
than read. The code is trusted, the manifest is not: each entry function's code holds the seal of
its variant's, see `tunefarm.compiler.runtime.artefact.seal`.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.compiler.errors import ArtefactError, ShapeError, VerifyError
from tunefarm.compiler.runtime.artefact.constants_check import ConstantsCheck, large_constants
from tunefarm.compiler.runtime.artefact.file_header import (
    FORMAT,
    HEADER,
    MAGIC,
    are_parents,
    digest_of,
    json_text,
    not_an_artefact,
    with_parents,
)
from tunefarm.compiler.runtime.artefact.manifest import (
    Part,
    Repacking,
    manifest_to_json,
    parts_from_json,
    parts_to_json,
    spec_from_json,
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
    seal,
    seal_of,
)
from tunefarm.compiler.runtime.machine.check_target import (
    can_run,
    check_target,
    lacking_features,
    platform_of,
)
from tunefarm.compiler.runtime.machine.in_threads import in_threads
from tunefarm.compiler.runtime.spec.buffers import aligned_pieces
from tunefarm.compiler.runtime.spec.executable_spec import (
    CallStep,
    ExecutableSpec,
    FunctionStep,
    LoopStep,
    aligned,
    made_for,
    needed_targets,
)
from tunefarm.compiler.runtime.spec.verify_spec import verify_spec
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.packing import NewArray, Packing
from tunefarm.compiler.types.structure import NO_STRUCTURE
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.configs.files import open_regular

TWO_VARIANTS = 4
LADDER = 5
PROGRAMS = 6
REPACKED = 7
OLDEST_FORMAT = 3
_REBUILD = "build the model again"


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
    _verify_programs((spec, *others))
    for variant in (spec, *others):
        if seal_of(variant) not in variant.entry:
            raise VerifyError(f"executable {variant.name}: its entry holds the seal of another one")
    parts = _PartList(shared=_is_of_several_targets((spec, *others)))
    variants = [
        manifest_to_json(variant, parts.add(variant, made_for(variant) == made_for(spec)))
        for variant in (spec, *others)
    ]
    checked = parts.with_sums(variants)
    manifest = {"parts": parts_to_json(checked), "variants": variants}
    _write(Path(path), _format_of((spec, *others), checked), manifest, parts.contents)


def _write(
    path: Path, version: int, manifest: Mapping[str, Any], contents: Mapping[int, Content]
) -> None:
    """Write a file with a manifest and the parts of these offsets, see `save`."""
    text = json_text(manifest)
    data_start = aligned(HEADER.size + len(text))
    last = max(contents)
    end = data_start + last + len(contents[last])
    header = HEADER.pack(MAGIC, version, 0, len(text), end, hashlib.sha256(text).digest())
    pieces = [(content, data_start + offset) for offset, content in contents.items()]
    try:
        _write_atomically(path, header + text, pieces, end)
    except OSError as error:
        raise ArtefactError(f"cannot write {path}: {error.strerror or error}") from error


class _PartList:
    """The parts of a file that is written, each content once; `contents` are those that the file
    holds, by their offset.

    Where packings are `shared`, a constant of a variant for another CPU than the first is made of
    the same numbers in another packing, if the file has them.
    """

    def __init__(self, *, shared: bool) -> None:
        self.parts: list[Part] = []
        self.contents: dict[int, Content] = {}
        self._numbers: dict[str, int] = {}  # by the content's digest
        self._packed: dict[tuple[int, str], tuple[int, Packing, Array]] = {}  # by the numbers'
        self._shared = shared
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
                packed = (number, known[1], variant.constants[place - before])
                self._packed.setdefault(known[0], packed)
        return [self._numbers[digest] for digest in digests]

    def with_sums(self, variants: Sequence[Any]) -> list[Part]:
        """The parts, with the CRC-32 of those that may be checked while these variants run."""
        later = large_constants(variants, [part.bytes for part in self.parts])

        def with_sum(item: tuple[int, Part]) -> Part:
            number, part = item
            if number not in later or part.repacking is not None:
                return part
            return replace(part, crc32=zlib.crc32(self.contents[part.offset]))

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
        if key not in self._packed:
            return None
        source, before, stored = self._packed[key]
        found = Repacking(source, array.itemsize, before, packing)
        same = hashlib.sha256(repacked(stored, found).data).hexdigest() == digest
        return found if same else None


def _format_of(
    programs: Sequence[ExecutableSpec], parts: Sequence[Part], parents: Sequence[str] = ()
) -> int:
    """The first format that has what these programs need."""
    if any(part.crc32 is not None for part in parts):
        return FORMAT
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
            write_pieces(number, [(head, 0), *pieces])
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


@frozen
class _Index:
    """A file's format, its manifest as JSON, its parts, and where they begin."""

    version: int
    variants: list[Any]
    parts: tuple[Part, ...]
    data_start: int
    parents: tuple[str, ...]

    @property
    def held(self) -> frozenset[int]:
        """The numbers of the parts that the file holds."""
        return frozenset(n for n, part in enumerate(self.parts) if part.repacking is None)


def read(path: str | PathLike[str], *, fallback: bool = False) -> ExecutableSpec:
    """The first program of an artifact for this machine, see `read_programs`."""
    return read_programs(path, fallback=fallback)[0]


def read_programs(
    path: str | PathLike[str], *, fallback: bool = False
) -> tuple[ExecutableSpec, ...]:
    """Read and check an artifact; its constants stay memory-mapped.

    The result are the programs for the best CPU that this machine can stand for, with `fallback`
    for all CPUs; they differ in the sizes that they are for. Raises `ArtefactError` when the file
    cannot be read, is no artifact, of another format, damaged anywhere, says other than its code,
    is without such a program, or made for other machines.
    """
    return _programs_here(_open(Path(path))[0], fallback=fallback)


def open_programs(
    path: str | PathLike[str], *, fallback: bool = False
) -> tuple[tuple[ExecutableSpec, ...], ConstantsCheck | None]:
    """As `read_programs`, but for the check of large constants, which has begun: of their CRC-32.

    Whoever runs the programs waits for it before a result is given to anybody.
    """
    opened, check = _open(Path(path), sums=True)
    return _programs_here(opened, fallback=fallback), check


def _programs_here(opened: _Opened, *, fallback: bool) -> tuple[ExecutableSpec, ...]:
    """The programs for this machine, with `fallback` for all."""
    if fallback and not opened.specs[-1].fallback:
        raise ArtefactError(
            f"{opened.path} was built without a fallback", hint="tune build --fallback"
        )
    return opened.programs(_machine_here(opened.specs, fallback=fallback))


@frozen
class Variant:
    """What an artifact holds for one kind of CPU: its programs, which differ in the sizes that they
    are for.

    Of the parts of the file that it needs `own_bytes` are in parts that no other variant has, and
    `repacked_bytes` are made of others when it is loaded.
    """

    programs: tuple[ExecutableSpec, ...]
    own_bytes: int
    shared_bytes: int
    repacked_bytes: int

    @property
    def target(self) -> Target:
        """The CPU that it is for."""
        return self.programs[0].target

    @property
    def fallback(self) -> bool:
        """Whether it is for CPUs that cannot run any other."""
        return self.programs[0].fallback


@frozen
class Contents:
    """What an artifact holds, `chosen` the number of the variant that this machine loads (None if
    it can run none), and the digests of the artifacts that it replaced, the newest first."""

    digest: str
    parents: tuple[str, ...]
    variants: tuple[Variant, ...]
    chosen: int | None


def read_contents(path: str | PathLike[str]) -> Contents:
    """Read and check all variants of an artifact, for other CPUs too.

    Raises `ArtefactError` as `read_programs` does, but for a file without a program for this CPU.
    """
    path = Path(path)
    opened, _ = _open(path)
    machines = list(dict.fromkeys(map(made_for, opened.specs)))
    users: dict[int, set[tuple[Target, bool]]] = {}
    for spec, variant in zip(opened.specs, opened.index.variants, strict=True):
        for number in variant["parts"]:
            users.setdefault(number, set()).add(made_for(spec))
    variants = []
    for machine in machines:
        own = shared = made = 0
        for number in (number for number in users if machine in users[number]):
            part = opened.index.parts[number]
            if part.repacking is not None:
                made += part.bytes
            elif len(users[number]) > 1:
                shared += part.bytes
            else:
                own += part.bytes
        variants.append(Variant(opened.programs(machine), own, shared, made))
    needed = needed_targets(opened.specs)
    able = (number for number, machine in enumerate(machines) if can_run(needed[machine]))
    return Contents(digest_of(path), opened.index.parents, tuple(variants), next(able, None))


@frozen
class _Opened:
    """A file whose manifest was checked: all its programs, with zeros for constants that are
    repacked, and the bytes of its parts."""

    path: Path
    index: _Index
    parts: list[Array]
    specs: list[ExecutableSpec]

    def programs(self, machine: tuple[Target, bool]) -> tuple[ExecutableSpec, ...]:
        """The programs for a CPU, with all their constants."""
        found = [n for n, spec in enumerate(self.specs) if made_for(spec) == machine]
        needed = {part for number in found for part in self.index.variants[number]["parts"]}
        made = sorted(needed - self.index.held)
        if not made:
            return tuple(self.specs[number] for number in found)
        contents = dict(enumerate(self.parts)) | self._repacked(made)
        _check_parts(self.path, self.index, contents, made)
        programs = []
        for number in found:
            variant = self.index.variants[number]
            own = [contents[part] for part in variant["parts"]]
            programs.append(spec_from_json(variant, own, self.specs[number].digests))
        return tuple(programs)

    def _repacked(self, numbers: Sequence[int]) -> dict[int, Array]:
        """The bytes of the parts with these numbers that the file does not hold."""

        pieces = aligned_pieces([self.index.parts[number].bytes for number in numbers])

        def make(item: tuple[int, NewArray]) -> Array:
            repacking = self.index.parts[item[0]].repacking
            assert repacking is not None
            return repacked(self.parts[repacking.source], repacking, item[1])

        made = in_threads(make, zip(numbers, pieces, strict=True))
        return dict(zip(numbers, made, strict=True))


def _open(path: Path, *, sums: bool = False) -> tuple[_Opened, ConstantsCheck | None]:
    """A file whose parts were checked, but for repacked ones.

    With `sums` the check of large constants has only begun, and compares their CRC-32 if they have
    one.
    """
    mapped = _mapped(path)
    index = _read_manifest(path, mapped)
    parts, held = _parts_of(path, mapped, index), index.held
    later, check = frozenset[int](), None
    if sums:
        later = held & large_constants(index.variants, [part.bytes for part in index.parts])
    if later:
        check = ConstantsCheck(lambda: _check_sums(path, index, parts, later))
    _check_parts(path, index, dict(enumerate(parts)), held - later)
    specs = [_checked_variant(path, variant, index.parts, parts) for variant in index.variants]
    _check_programs(path, specs, index)
    return _Opened(path, index, parts, specs), check


def is_artefact(path: str | PathLike[str]) -> bool:
    """Whether a file can be read and begins as artifacts do."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def set_parents(path: str | PathLike[str], parents: Sequence[str]) -> None:
    """Name the artifacts that the one at `path` replaces, by their digests, in its manifest.

    Raises `ArtefactError` when the file cannot be read or written, or is none of this format.
    """
    path = Path(path)
    mapped = _mapped(path)
    index = _read_manifest(path, mapped)
    contents: dict[int, Content] = {}
    for part in (part for part in index.parts if part.repacking is None):
        start = index.data_start + part.offset
        contents[part.offset] = mapped[start : start + part.bytes].data
    manifest = {"parts": parts_to_json(index.parts), "variants": index.variants}
    _write(path, max(index.version, REPACKED), with_parents(manifest, parents), contents)


def _mapped(path: Path) -> Array:
    """The file's bytes, memory-mapped."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise not_an_artefact(path)
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with suppress(OSError, AttributeError):  # Linux's, from which weights are read faster
                memory.madvise(mmap.MADV_HUGEPAGE)
            return np.frombuffer(memory, dtype=np.uint8)
    except (OSError, ValueError) as error:
        from tunefarm.configs.file_kinds import kind_of  # what is right needs none of it

        if isinstance(error, FileNotFoundError) and (kind := kind_of(path)) is not None:
            raise ArtefactError(f"{path} is {kind.what}", hint=kind.advice) from error
        reason = getattr(error, "strerror", None) or str(error)
        raise ArtefactError(f"cannot read {path}: {reason}") from error


def _read_manifest(path: Path, mapped: Array) -> _Index:
    """The manifest, after its bytes and the header's have been checked."""
    head = mapped[: HEADER.size].tobytes()
    if head[: len(MAGIC)] != MAGIC:
        raise not_an_artefact(path)
    if len(head) < HEADER.size:
        raise ArtefactError(f"{path} is truncated", hint=_REBUILD)
    _, version, reserved, manifest_bytes, file_bytes, digest = HEADER.unpack(head)
    if version > FORMAT:
        raise ArtefactError(
            f"{path} has the artifact format {version}, this version reads {FORMAT}",
            hint="update tunefarm, or build the model again",
        )
    if 0 < version < OLDEST_FORMAT:
        raise ArtefactError(
            f"{path} has the older artifact format {version}, "
            f"this version reads {OLDEST_FORMAT} to {FORMAT}",
            hint=_REBUILD,
        )
    if version < OLDEST_FORMAT or reserved:
        raise ArtefactError(f"{path} is damaged: its header is not valid", hint=_REBUILD)
    if mapped.size < file_bytes:
        raise ArtefactError(
            f"{path} is truncated: {mapped.size} of {file_bytes} bytes", hint=_REBUILD
        )
    data_start = aligned(HEADER.size + manifest_bytes)
    if mapped.size > file_bytes or data_start > file_bytes:
        raise ArtefactError(
            f"{path} is damaged: its size differs from the size in its header", hint=_REBUILD
        )
    text = mapped[HEADER.size : HEADER.size + manifest_bytes].tobytes()
    if (
        hashlib.sha256(text).digest() != digest
        or mapped[HEADER.size + manifest_bytes : data_start].any()
    ):
        raise ArtefactError(f"{path} is damaged: its manifest has changed", hint=_REBUILD)
    try:
        data = json.loads(text)
        written = json_text(data)
        parts, variants = parts_from_json(data["parts"]), data["variants"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _not_valid(path, str(error)) from error
    if written != text:
        raise _not_valid(path, "it is not written as tunefarm writes it")
    parents = data.pop("parents", [])
    if data.keys() != {"parts", "variants"} or not isinstance(variants, list) or not variants:
        raise _not_valid(path, "it has no variants")
    if not are_parents(parents):
        raise _not_valid(path, "its parents are none")
    if not any(part.repacking is None for part in parts):
        raise _not_valid(path, "it has no parts")
    return _Index(version, variants, parts, data_start, tuple(parents))


def _not_valid(path: Path, reason: str) -> ArtefactError:
    """The error of a manifest that tunefarm has not written; `reason` may quote it."""
    line = " ".join(reason.split())[:200].encode("ascii", "backslashreplace").decode()
    return ArtefactError(f"{path} has a manifest that is not valid: {line}", hint=_REBUILD)


def _parts_of(path: Path, mapped: Array, index: _Index) -> list[Array]:
    """The bytes of every part, once the zeros between them have been checked; zeros for those that
    the file does not hold."""
    contents: list[Array] = []
    end = index.data_start
    for number, part in enumerate(index.parts):
        if part.repacking is not None:
            contents.append(np.zeros(part.bytes, np.uint8))  # pages that nobody touches
            continue
        start = index.data_start + part.offset
        content = mapped[start : start + part.bytes]
        if start != aligned(end) or content.size != part.bytes:
            raise ArtefactError(f"{path} lacks part {number}", hint=_REBUILD)
        if mapped[end:start].any():
            raise ArtefactError(f"{path} is damaged: bytes before part {number}", hint=_REBUILD)
        contents.append(content)
        end = start + part.bytes
    if end != mapped.size:
        raise ArtefactError(f"{path} is damaged: bytes follow the last part", hint=_REBUILD)
    return contents


def _check_sums(
    path: Path, index: _Index, contents: Sequence[Array], numbers: Collection[int]
) -> None:
    """Raise `ArtefactError` unless the parts of these numbers have the CRC-32 of the manifest, or
    the SHA-256 where it has no CRC-32. One thread does it: another one runs the model."""
    summed = sorted(number for number in numbers if index.parts[number].crc32 is not None)
    for number in summed:
        if zlib.crc32(contents[number].data) != index.parts[number].crc32:
            raise _changed(path, number)
    _check_parts(path, index, dict(enumerate(contents)), set(numbers).difference(summed))


def _check_parts(
    path: Path, index: _Index, contents: Mapping[int, Array], numbers: Collection[int]
) -> None:
    """Raise `ArtefactError` unless the parts of these numbers have the SHA-256 of the manifest."""
    order = sorted(numbers)
    digests = content_digests([contents[number].data for number in order])
    for number, digest in zip(order, digests, strict=True):
        if digest != index.parts[number].sha256:
            raise _changed(path, number)


def _changed(path: Path, number: int) -> ArtefactError:
    return ArtefactError(f"{path} is damaged: part {number} has changed", hint=_REBUILD)


def _checked_variant(
    path: Path, variant: Any, parts: Sequence[Part], contents: Sequence[Array]
) -> ExecutableSpec:
    """A variant with its parts, once its manifest has been held against its code."""
    numbers = variant.get("parts") if isinstance(variant, dict) else None
    if not isinstance(numbers, list) or not numbers:
        raise _not_valid(path, "a variant has no parts")
    for number in numbers:
        if type(number) is not int or not 0 <= number < len(parts):
            raise ArtefactError(f"{path} lacks a part of a variant", hint=_REBUILD)
    own = [contents[number] for number in numbers]
    digests = [parts[number].sha256 for number in numbers[1:]]
    if seal(variant, digests) not in own[0].tobytes():
        raise ArtefactError(f"{path} is damaged: its manifest and its code differ", hint=_REBUILD)
    try:
        spec = spec_from_json(variant, own, digests)
        verify_spec(spec)
    except (AttributeError, KeyError, TypeError, ValueError, ShapeError, VerifyError) as error:
        raise _not_valid(path, str(error)) from error
    return spec


def _check_programs(path: Path, programs: Sequence[ExecutableSpec], index: _Index) -> None:
    """Raise `ArtefactError` unless the programs are a list of the file's format, and every part is
    used."""
    try:
        _verify_programs(programs)
    except VerifyError as error:
        raise _not_valid(path, error.message) from error
    wanted = _format_of(programs, index.parts, index.parents)
    if wanted != max(index.version, TWO_VARIANTS):
        raise _not_valid(path, f"its format {index.version} is not that of its variants")
    used = {number for variant in index.variants for number in variant["parts"]}
    if len(used) != len(index.parts):
        raise _not_valid(path, "it has parts that no variant uses")


def _verify_programs(programs: Sequence[ExecutableSpec]) -> None:
    """Raise `VerifyError` unless the programs are of one model, in order, and each can be reached.

    All have the same inputs and outputs, but for their extents and the ranks of outputs; fallbacks
    follow the others; no two are for the same CPU and sizes.
    """
    problem = _problem(programs)
    if problem:
        raise VerifyError(f"executable {programs[0].name}: {problem}")


def _problem(programs: Sequence[ExecutableSpec]) -> str:
    kinds = [program.fallback for program in programs]
    if kinds != sorted(kinds):
        return "its programs are not in order"
    first = programs[0]
    for program in programs[1:]:
        if _ports(program) != _ports(first):
            return "its programs have not the same inputs and outputs"
        if program.structure != first.structure:
            return "its programs have not the same lists and optionals"
    for number, program in enumerate(programs):
        for other in programs[:number]:
            if made_for(other) != made_for(program):
                continue
            if not (other.guards and program.guards) or other.guards == program.guards:
                return f"two programs are for {program.target.cpu} and the same sizes"
    return ""


def _ports(program: ExecutableSpec) -> tuple[list[tuple[str, DType, int]], list[tuple[str, DType]]]:
    signature = program.signature
    ranked = [(port.name, port.dtype, len(port.shape)) for port in signature.inputs]
    return ranked, [(port.name, port.dtype) for port in signature.outputs]


def _machine_here(
    programs: Sequence[ExecutableSpec], *, fallback: bool = False
) -> tuple[Target, bool]:
    """The first target that this machine can run, with `fallback` the last one.

    Raises `ArtefactError` if there is none, naming what each needs.
    """
    machines = list(needed_targets(programs).items())
    if fallback:
        machines = machines[-1:]
    chosen = next((machine for machine, target in machines if can_run(target)), None)
    if chosen is None and len(machines) == 1:
        check_target(machines[0][1])
    if chosen is None:
        raise _refusal([target for _, target in machines])
    return chosen


def _refusal(targets: Sequence[Target]) -> ArtefactError:
    host = host_target()
    here = platform_of(host)

    def need(target: Target) -> str:
        if platform_of(target) != here:
            return f"that for {target.cpu} needs {platform_of(target)}"
        return f"that for {target.cpu} needs {lacking_features(target, host)}"

    needs = "; ".join(map(need, targets))
    return ArtefactError(
        f"the model has no program for this {host.cpu} ({here}), which lacks what they need: "
        f"{needs}",
        hint="build it with --fallback, again on this machine, or for an older target",
    )
