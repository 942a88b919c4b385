"""Builds that were made before: the same model and the same schedules give the same artefact.

The first entry of a build says which kernels a model has, so that their schedules can be looked up
without reading the model; the second one, found by kernels and schedules, is the artefact itself.
A model is known by the SHA-256 of its file. One that may refer to other files is not kept.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from compiler.content_cache import ContentCache, cache_key
from compiler.copy_file import ChangedFileError, copy_file
from compiler.errors import ArtefactError, TunefarmError
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.serialize import kernel_from_json, kernel_to_json
from compiler.kernels.workload_key import workload_key
from compiler.runtime import artefact
from compiler.runtime.executable_spec import ExecutableSpec
from compiler.schedule.choice import ChooseSchedule, ScheduleChoice
from compiler.target import Target
from configs.settings import Settings, cache_folder

# The key that every reference of an ONNX file to another file contains.
_REFERENCE = b"location"


class KnownModel:
    """What the cache knows of one model, for one target and one way to compile it."""

    def __init__(self, cache: ContentCache, model_key: str, rest: tuple[object, ...]) -> None:
        self.model_hash = ""
        self._cache = cache
        self._kernels_key = cache_key("kernels", model_key)
        self._rest = rest

    @staticmethod
    def of(
        path: str | PathLike[str],
        settings: Settings,
        target: Target,
        shapes: Mapping[str, tuple[int, ...]] | None,
    ) -> KnownModel | None:
        """The model in the file `path`; None if builds are not kept, or not those of this file."""
        folder = cache_folder(settings)
        digest = None if folder is None else _file_digest(path)
        if folder is None or digest is None:
            return None
        facts = sorted((name, list(shape)) for name, shape in (shapes or {}).items())
        model_key = cache_key(digest, facts, target.lanes, Path(path).stem)
        compile = settings.compile
        rest = (target.to_json(), compile.threads, compile.numerics)
        return KnownModel(ContentCache(folder), model_key, rest)

    def kernels(self) -> dict[str, FusedKernel] | None:
        """The model's distinct kernels by workload key, in order of first use, if known."""
        found = self._cache.find(self._kernels_key)
        if found is None:
            return None
        try:
            kernels = [kernel_from_json(value) for value in found[0]["kernels"]]
        except TunefarmError:
            return None
        self.model_hash = found[0]["model_hash"]
        return {workload_key(kernel): kernel for kernel in kernels}

    def artefact(
        self, kernels: Mapping[str, FusedKernel], choose: ChooseSchedule | None
    ) -> tuple[ExecutableSpec, Path] | None:
        """The artefact of these kernels with the schedules that are chosen now, checked."""
        chosen = {} if choose is None else {key: choose(kernel) for key, kernel in kernels.items()}
        path = self._cache.path(self._artefact_key(kernels, chosen))
        try:
            return artefact.read(path), path
        except ArtefactError:
            with suppress(OSError):
                path.unlink()  # damaged, if it is there at all
            return None

    def remember(
        self,
        kernels: Mapping[str, FusedKernel],
        chosen: Mapping[str, ScheduleChoice],
        model_hash: str,
        output: Path,
    ) -> None:
        """Keep what was built to `output`, unless it would fill more than half of the cache."""
        self.model_hash = model_hash
        if output.stat().st_size > self._cache.most_bytes // 2:
            return
        values = [kernel_to_json(kernel) for kernel in kernels.values()]
        self._cache.add(self._kernels_key, {"model_hash": model_hash, "kernels": values})
        path = self._cache.path(self._artefact_key(kernels, chosen))
        with suppress(OSError, ChangedFileError):
            path.parent.mkdir(parents=True, exist_ok=True)
            copy_file(output, path)
            self._cache.trim()

    def _artefact_key(
        self, kernels: Mapping[str, FusedKernel], chosen: Mapping[str, ScheduleChoice | None]
    ) -> str:
        uses = [[key, _choice_to_json(chosen.get(key))] for key in kernels]
        return cache_key("artefact", self._kernels_key, *self._rest, uses)


def _choice_to_json(choice: ScheduleChoice | None) -> list[Any] | None:
    if choice is None:
        return None
    return [choice.schedule.to_json(), choice.source, choice.record_id, choice.latency]


def _file_digest(path: str | PathLike[str]) -> str | None:
    """The SHA-256 of a file that refers to no other; None for others, and if it is unreadable."""
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if content.find(_REFERENCE) >= 0:
                return None
            return hashlib.sha256(content).hexdigest()
    except (OSError, ValueError):
        return None
