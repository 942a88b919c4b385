"""Artifact: a compiled model as one file of machine code, packed weights and a JSON manifest.

    bytes 0-7     magic "TUNEFARM"
    8-11          format version (all numbers little endian)
    12-15         zero
    16-23         bytes of the manifest
    24-31         bytes of the file
    32-63         SHA-256 of the manifest
    64-           manifest (JSON), then zeros up to a multiple of 64
    then          the parts: entry functions, kernels' object code, constants; each starts at a
                  multiple of 64, with zeros between, and the manifest has the SHA-256 of each

The manifest lists the variants of the model, its programs, the preferred one first; others may be
for CPUs that lack what that one needs, the fastest first, or for other sizes of the inputs. What
several have in common is one part.

Every byte is covered by a check (of large constants it may end later, see
`tunefarm.compiler.runtime.artefact.constants_check`), the same model gives the same bytes, and
constants are mapped into memory rather than read. The code is trusted, the manifest is not: each
entry function's code holds the seal of its variant's, see
`tunefarm.compiler.runtime.artefact.seal`.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.compiler.errors import ArtefactError, ShapeError, VerifyError
from tunefarm.compiler.runtime.artefact.constants_check import ConstantsCheck, large_constants
from tunefarm.compiler.runtime.artefact.manifest import (
    Part,
    manifest_to_json,
    parts_from_json,
    parts_to_json,
    spec_from_json,
)
from tunefarm.compiler.runtime.artefact.seal import (
    Content,
    content_digests,
    json_text,
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
from tunefarm.compiler.runtime.spec.executable_spec import (
    CallStep,
    ExecutableSpec,
    FunctionStep,
    LoopStep,
    aligned,
)
from tunefarm.compiler.runtime.spec.verify_spec import verify_spec
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.structure import NO_STRUCTURE
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.configs.files import open_regular

FORMAT = 6
"""Format 1 had one variant, format 2 no seal, format 3 no buffers within inputs and outputs, format
4 no more than two variants, format 5 no variants but fallbacks of one, no dynamic shapes, no lists,
no functions and no branches. A file has the first format that has what it needs, so that older
versions read it."""
TWO_VARIANTS = 4
LADDER = 5
OLDEST_FORMAT = 3
MAGIC = b"TUNEFARM"
_HEADER = struct.Struct("<8sIIQQ32s")
_REBUILD = "build the model again"
_MADE_BY = "tune build makes one of a model; it is run from there"


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
    path = Path(path)
    parts: list[Part] = []
    contents: list[Content] = []
    numbers: dict[str, int] = {}
    variants = []
    _verify_programs((spec, *others))
    for variant in (spec, *others):
        if seal_of(variant) not in variant.entry:
            raise VerifyError(f"executable {variant.name}: its entry holds the seal of another one")
        uses = []
        of_variant = [variant.entry, *part_contents(variant.objects, variant.constants)]
        digests = (*content_digests([variant.entry]), *variant.digests)
        for content, digest in zip(of_variant, digests, strict=True):
            if digest not in numbers:
                numbers[digest] = len(parts)
                start = aligned(parts[-1].offset + parts[-1].bytes) if parts else 0
                parts.append(Part(start, len(content), digest))
                contents.append(content)
            uses.append(numbers[digest])
        variants.append(manifest_to_json(variant, uses))
    manifest = json_text({"parts": parts_to_json(parts), "variants": variants})
    data_start = aligned(_HEADER.size + len(manifest))
    end = data_start + parts[-1].offset + parts[-1].bytes
    version = _format_of((spec, *others))
    header = _HEADER.pack(MAGIC, version, 0, len(manifest), end, hashlib.sha256(manifest).digest())
    try:
        _write_atomically(path, header + manifest, data_start, parts, contents)
    except OSError as error:
        raise ArtefactError(f"cannot write {path}: {error.strerror or error}") from error


def _format_of(programs: Sequence[ExecutableSpec]) -> int:
    """The first format that has what these programs need."""
    preferred = [program for program in programs if not program.fallback]
    if len(preferred) > 1 or any(map(_is_new, programs)):
        return FORMAT
    return LADDER if len(programs) > 2 else TWO_VARIANTS


def _is_new(program: ExecutableSpec) -> bool:
    """Whether a program has what no format before the last one had."""
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
    path: Path,
    head: bytes,
    data_start: int,
    parts: Sequence[Part],
    contents: Sequence[Content],
) -> None:
    import tempfile  # these are for writing only, and most processes only read

    from tunefarm.compiler.runtime.artefact.large_files import reserve, write_at

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            number = file.fileno()
            reserve(number, data_start + parts[-1].offset + parts[-1].bytes)
            write_at(number, head, 0)
            starts = (data_start + part.offset for part in parts)
            in_threads(lambda piece: write_at(number, *piece), zip(contents, starts, strict=True))
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


@dataclass(frozen=True, slots=True)
class _Index:
    """A file's format, its manifest as JSON, its parts, and where they begin."""

    version: int
    variants: list[Any]
    parts: tuple[Part, ...]
    data_start: int


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
    programs, check = open_programs(path, fallback=fallback)
    if check is not None:
        check.wait()
    return programs


def open_programs(
    path: str | PathLike[str], *, fallback: bool = False
) -> tuple[tuple[ExecutableSpec, ...], ConstantsCheck | None]:
    """As `read_programs`, but for the check of large constants, which has begun.

    Whoever runs the programs waits for it before a result is given to anybody.
    """
    path = Path(path)
    mapped = _mapped(path)
    index = _read_manifest(path, mapped)
    parts = _parts_of(path, mapped, index)
    later = large_constants(index.variants, [part.bytes for part in index.parts])
    check = None
    if later:
        check = ConstantsCheck(lambda: _check_parts(path, index, parts, later))
    _check_parts(path, index, parts, frozenset(range(len(parts))) - later)
    specs = [_checked_variant(path, variant, index.parts, parts) for variant in index.variants]
    _check_programs(path, specs, index)
    if fallback and not specs[-1].fallback:
        raise ArtefactError(f"{path} was built without a fallback", hint="tune build --fallback")
    return _programs_here(specs, fallback=fallback), check


def is_artefact(path: str | PathLike[str]) -> bool:
    """Whether a file can be read and begins as artifacts do."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def digest_of(path: str | PathLike[str]) -> str:
    """The SHA-256 of an artifact's manifest, in hex digits: it covers everything in the file.

    Raises `ArtefactError` when the file cannot be read or is no artifact.
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            head = file.read(_HEADER.size)
    except OSError as error:
        raise ArtefactError(f"cannot read {path}: {error.strerror or error}") from error
    if len(head) < _HEADER.size or not head.startswith(MAGIC):
        raise _not_an_artefact(path)
    digest: bytes = _HEADER.unpack(head)[-1]
    return digest.hex()


def _mapped(path: Path) -> Array:
    """The file's bytes, memory-mapped."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise _not_an_artefact(path)
            return np.frombuffer(
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8
            )
    except (OSError, ValueError) as error:
        from tunefarm.configs.file_kinds import kind_of  # what is right needs none of it

        if isinstance(error, FileNotFoundError) and (kind := kind_of(path)) is not None:
            raise ArtefactError(f"{path} is {kind.what}", hint=kind.advice) from error
        reason = getattr(error, "strerror", None) or str(error)
        raise ArtefactError(f"cannot read {path}: {reason}") from error


def _not_an_artefact(path: Path) -> ArtefactError:
    """What else the file is, where that can be told."""
    from tunefarm.configs.file_kinds import kind_of  # what is right needs none of it

    kind = kind_of(path)
    if kind is None:
        return ArtefactError(f"{path} is not a tunefarm artifact", hint=_MADE_BY)
    description = kind.instead_of("an artifact of tune build")
    return ArtefactError(f"{path} is {description}", hint=kind.advice or _MADE_BY)


def _read_manifest(path: Path, mapped: Array) -> _Index:
    """The manifest, after its bytes and the header's have been checked."""
    head = mapped[: _HEADER.size].tobytes()
    if head[: len(MAGIC)] != MAGIC:
        raise _not_an_artefact(path)
    if len(head) < _HEADER.size:
        raise ArtefactError(f"{path} is truncated", hint=_REBUILD)
    _, version, reserved, manifest_bytes, file_bytes, digest = _HEADER.unpack(head)
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
    data_start = aligned(_HEADER.size + manifest_bytes)
    if mapped.size > file_bytes or data_start > file_bytes:
        raise ArtefactError(
            f"{path} is damaged: its size differs from the size in its header", hint=_REBUILD
        )
    text = mapped[_HEADER.size : _HEADER.size + manifest_bytes].tobytes()
    if (
        hashlib.sha256(text).digest() != digest
        or mapped[_HEADER.size + manifest_bytes : data_start].any()
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
    if data.keys() != {"parts", "variants"} or not isinstance(variants, list) or not variants:
        raise _not_valid(path, "it has no variants")
    return _Index(version, variants, parts, data_start)


def _not_valid(path: Path, reason: str) -> ArtefactError:
    """The error of a manifest that tunefarm has not written; `reason` may quote it."""
    line = " ".join(reason.split())[:200].encode("ascii", "backslashreplace").decode()
    return ArtefactError(f"{path} has a manifest that is not valid: {line}", hint=_REBUILD)


def _parts_of(path: Path, mapped: Array, index: _Index) -> list[Array]:
    """The bytes of every part, once the zeros between them have been checked."""
    contents = []
    end = index.data_start
    for number, part in enumerate(index.parts):
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


def _check_parts(
    path: Path, index: _Index, contents: Sequence[Array], numbers: Collection[int]
) -> None:
    """Raise `ArtefactError` unless the parts of these numbers have the hashes of the manifest."""
    order = sorted(numbers)
    digests = content_digests([contents[number].data for number in order])
    for number, digest in zip(order, digests, strict=True):
        if digest != index.parts[number].sha256:
            raise ArtefactError(f"{path} is damaged: part {number} has changed", hint=_REBUILD)


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
    wanted = _format_of(programs)
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
            if _machine(other) != _machine(program):
                continue
            if not (other.guards and program.guards) or other.guards == program.guards:
                return f"two programs are for {program.target.cpu} and the same sizes"
    return ""


def _machine(program: ExecutableSpec) -> tuple[Target, bool]:
    """What the programs have in common of which one runs for its sizes."""
    return program.target, program.fallback


def _ports(program: ExecutableSpec) -> tuple[list[tuple[str, DType, int]], list[tuple[str, DType]]]:
    signature = program.signature
    ranked = [(port.name, port.dtype, len(port.shape)) for port in signature.inputs]
    return ranked, [(port.name, port.dtype) for port in signature.outputs]


def _programs_here(
    programs: Sequence[ExecutableSpec], *, fallback: bool = False
) -> tuple[ExecutableSpec, ...]:
    """The programs for the first target that this machine can run, with `fallback` the last one.

    Raises `ArtefactError` if there is none, naming what each needs.
    """
    machines = list(dict.fromkeys(map(_machine, programs)))
    if fallback:
        machines = machines[-1:]
    chosen = next((machine for machine in machines if can_run(machine[0])), None)
    if chosen is None and len(machines) == 1:
        check_target(machines[0][0])
    if chosen is None:
        raise _refusal([target for target, _ in machines])
    return tuple(program for program in programs if _machine(program) == chosen)


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
