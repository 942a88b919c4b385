"""Artefacts that were damaged or edited: each is refused in a line, before anything runs.

Bytes are changed as they are, or the manifest is edited and every hash made right again. What still
loads is run and profiled in a fork, its arena, outputs, inputs and constants between guard pages.
An artefact with any edit that loads is a finding, and so is whatever is not an ArtefactError.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np

from tests.attack.artefact_models import save_models
from tests.attack.attack import Attack, Outcome
from tests.attack.forked import End, Forked, run_forked
from tests.attack.manifest_edits import Edit, draw_edits, draw_text
from tests.compiler.runtime.edited_artefacts import data_start, manifest_text, with_manifest
from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.runtime.artefact import artefact
from tunefarm.compiler.runtime.artefact.file_header import json_text
from tunefarm.compiler.runtime.execution import frame
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.measure.sandbox.guarded import GuardedBuffer

_SECONDS = 20.0
_POISON = 0xCC
_REFUSED = "refused: "
_LONGEST_LINE = 600


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A changed file: what was done in words, the edits it consists of, and its bytes."""

    label: str
    base: Path
    contents: bytes
    edits: tuple[Edit, ...] = ()
    text: str = ""


class Artefacts(Attack):
    """Damages and edits of the artefacts of small models."""

    name: ClassVar[str] = "artefacts"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        models = folder / ".models"
        models.mkdir(exist_ok=True)
        self._models = save_models(models)
        for path in self._models:
            ended = run_forked(lambda path=path: run_artefact(path))  # type: ignore[misc]
            if ended.end is not End.RETURNED or ended.text.startswith(_REFUSED):
                raise RuntimeError(f"{path.name} does not run unchanged: {ended.text}")

    def attempt(self, seed: int) -> Outcome:
        rng = Random(seed)
        base = rng.choice(self._models)
        draw = rng.choices((_edited, _respelled, _resigned, _damaged), (16, 1, 2, 5))[0]
        return self._outcome(draw(rng, base))

    def minimise(self, seed: int, outcome: Outcome) -> str:
        rng = Random(seed)
        base = rng.choice(self._models)
        if rng.choices((True, False), (16, 8))[0]:
            attempt = _edited(rng, base)
            for edit in attempt.edits if len(attempt.edits) > 1 else ():
                try:
                    alone = _with_edits(base, [edit], edit.apply(_manifest(base)))
                except (KeyError, IndexError, TypeError):
                    continue
                if self._outcome(alone).label == outcome.label:
                    return f"{base.name}: {edit}"
        return ""

    def _outcome(self, attempt: _Attempt) -> Outcome:
        path = self.folder / "changed.tuned"
        path.write_bytes(attempt.contents)
        ended = run_forked(lambda: run_artefact(path), seconds=_SECONDS)
        problem = _problem(ended)
        if not problem:
            return Outcome(f"{attempt.label} refused")
        done = "\n".join([attempt.base.name, attempt.text, *map(str, attempt.edits)])
        return Outcome(problem, broke=True, detail=f"{attempt.label} {done}\n{ended.text}")


def _problem(ended: Forked) -> str:
    """What is wrong with how loading a changed artefact ended, or nothing."""
    if ended.end is not End.RETURNED:
        return str(ended.end)
    if not ended.text.startswith(_REFUSED):
        return "accepted"
    line = ended.text.removeprefix(_REFUSED)
    return "" if line.isprintable() and len(line) < _LONGEST_LINE else "not one line"


def run_artefact(path: Path) -> str:
    """Load, run and profile the variants of a file; why it is refused, or what they compute.

    It is refused only if both variants are: a file of one has the other in no case.
    """
    told = []
    for fallback in (False, True):
        try:
            told.append(_run_guarded(path, fallback))
        except ArtefactError as error:
            if not fallback:
                return f"{_REFUSED}{error}"
            told.append(str(error))
    return "\n".join(told)


def _run_guarded(path: Path, fallback: bool) -> str:
    """The outputs' digests; RuntimeError if a margin of a buffer was written to."""
    buffers: list[GuardedBuffer] = []

    def guarded(type: TensorType, content: Array | None = None) -> Array:
        buffers.append(GuardedBuffer(type.bytes))
        buffers[-1].poison(_POISON)
        if content is not None:
            buffers[-1].fill(content)
        return buffers[-1].array(type.dtype, type.shape)

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any], count: int) -> tuple[Array, int]:
        place = guarded(TensorType(DType.U8, (max(1, count),)))
        return np.ndarray(shape, dtype, place), buffers[-1].address

    vars(frame).update(allocate=allocate, allocate_output=allocate)  # of this fork alone
    spec = artefact.read(path, fallback=fallback)
    constants = tuple(
        guarded(TensorType(DType.from_numpy(array.dtype), array.shape), array)
        for array in spec.constants
    )
    executable = Executable(replace(spec, constants=constants))
    rng = np.random.default_rng(7)
    inputs = {
        name: guarded(type, rng.integers(0, 2, type.shape).astype(type.dtype.numpy))
        for name, type in executable.inputs_at().items()
    }
    outputs = executable.run(inputs)
    executable.profile(inputs, repeat=1)
    damage = "; ".join(filter(None, (buffer.damage() for buffer in buffers)))
    if damage:
        raise RuntimeError(f"out of bounds: {damage}")
    return " ".join(
        f"{name}: {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]}"
        for name, array in outputs.items()
    )


def _manifest(base: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(manifest_text(base.read_bytes()))
    return manifest


def _with_edits(base: Path, edits: list[Edit], manifest: object) -> _Attempt:
    contents = with_manifest(base.read_bytes(), json_text(manifest))
    return _Attempt("edit", base, contents, tuple(edits))


def _edited(rng: Random, base: Path) -> _Attempt:
    """An edit or two of the manifest."""
    return _with_edits(base, *draw_edits(rng, _manifest(base)))


def _respelled(rng: Random, base: Path) -> _Attempt:
    """Another text for the manifest."""
    contents = base.read_bytes()
    text = draw_text(rng, manifest_text(contents))
    return _Attempt("text", base, with_manifest(contents, text), text=text[:300].decode())


def _resigned(rng: Random, base: Path) -> _Attempt:
    """A change in a part that is not an entry's code, with that part's hash made right."""
    contents, manifest = bytearray(base.read_bytes()), _manifest(base)
    entries = {variant["parts"][0] for variant in manifest["variants"]}
    number = rng.choice(
        [n for n, part in enumerate(manifest["parts"]) if n not in entries and part[1]] or [-1]
    )
    if number < 0:
        return _edited(rng, base)
    offset, size, *_ = manifest["parts"][number]
    start = data_start(bytes(contents)) + offset
    contents[start + rng.randrange(size)] ^= 1 << rng.randrange(8)
    manifest["parts"][number][2] = hashlib.sha256(contents[start : start + size]).hexdigest()
    changed = with_manifest(bytes(contents), json_text(manifest))
    return _Attempt("part", base, changed, text=f"a bit of part {number}")


def _damaged(rng: Random, base: Path) -> _Attempt:
    """Bytes changed, cut off, added or moved."""
    contents = base.read_bytes()
    changed, text = contents, ""
    while changed == contents:
        text, damage = rng.choice(_DAMAGES)
        changed = damage(rng, contents)
    return _Attempt("damage", base, changed, text=text)


def _flip(rng: Random, contents: bytes) -> bytes:
    changed = bytearray(contents)
    within = min(rng.choice((64, 4096, len(contents))), len(contents))
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(within)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _swap(rng: Random, contents: bytes) -> bytes:
    size = rng.choice((64, 256, 1024))
    first, second = sorted(64 * rng.randrange(len(contents) // 64) for _ in range(2))
    size = min(size, second - first, len(contents) - second)
    one, other = contents[first : first + size], contents[second : second + size]
    return (
        contents[:first] + other + contents[first + size : second] + one + contents[second + size :]
    )


def _erase(rng: Random, contents: bytes) -> bytes:
    start = rng.randrange(len(contents))
    size = min(rng.choice((1, 64, 4096)), len(contents) - start)
    return contents[:start] + bytes(size) + contents[start + size :]


def _renumber(rng: Random, contents: bytes) -> bytes:
    """Another number in the header."""
    changed = bytearray(contents)
    value = rng.choice((0, 1, 2, 63, 64, len(contents), 2**31, 2**63, 2**64 - 1))
    struct.pack_into("<Q", changed, rng.choice((8, 16, 24)), value)
    return bytes(changed)


_DAMAGES: tuple[tuple[str, Callable[[Random, bytes], bytes]], ...] = (
    ("bits flipped", _flip),
    ("bits flipped", _flip),
    ("cut off", lambda rng, contents: contents[: rng.randrange(len(contents))]),
    ("extended", lambda rng, contents: contents + rng.randbytes(rng.choice((1, 64, 5000)))),
    ("zeros added", lambda rng, contents: contents + bytes(rng.choice((1, 64, 5000)))),
    ("twice", lambda rng, contents: contents + contents),
    ("blocks swapped", _swap),
    ("erased", _erase),
    ("another number in the header", _renumber),
)
