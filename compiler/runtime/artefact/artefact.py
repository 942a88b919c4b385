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
    OLDEST_FORMAT,
    REPACKED,
    TWO_VARIANTS,
    are_parents,
    digest_of,
    json_text,
    not_an_artefact,
    with_parents,
)
from tunefarm.compiler.runtime.artefact.manifest import (
    Part,
    parts_from_json,
    parts_to_json,
    spec_from_json,
)
from tunefarm.compiler.runtime.artefact.repacking import repacked
from tunefarm.compiler.runtime.artefact.seal import (
    Content,
    content_digests,
    seal,
)
from tunefarm.compiler.runtime.artefact.write_artefact import format_of, write_file
from tunefarm.compiler.runtime.machine.check_target import (
    can_run,
    check_target,
    lacking_features,
    platform_of,
)
from tunefarm.compiler.runtime.machine.in_threads import in_threads
from tunefarm.compiler.runtime.spec.buffers import aligned_pieces
from tunefarm.compiler.runtime.spec.executable_spec import (
    ExecutableSpec,
    aligned,
    made_for,
    needed_targets,
)
from tunefarm.compiler.runtime.spec.verify_spec import verify_programs, verify_spec
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.packing import NewArray
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.configs.files import open_regular

_REBUILD = "build the model again"


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
    write_file(path, max(index.version, REPACKED), with_parents(manifest, parents), contents)


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
        verify_programs(programs)
    except VerifyError as error:
        raise _not_valid(path, error.message) from error
    wanted = format_of(programs, index.parts, index.parents)
    if wanted != max(index.version, TWO_VARIANTS):
        raise _not_valid(path, f"its format {index.version} is not that of its variants")
    used = {number for variant in index.variants for number in variant["parts"]}
    if len(used) != len(index.parts):
        raise _not_valid(path, "it has parts that no variant uses")


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
