"""What was built before, found by what it was made from. Three kinds of entries, and artifacts:

    build      files of model and database, settings, programs -> how it was built, its artifact
    kernels    file of the model, target, precision, denormals, threads -> its distinct kernels
    artifact   kernels with the schedules chosen now, settings -> how it was built, its artifact

Where a `build` is found, neither is a record looked up nor a library imported that could. The
`kernels` say whose schedules are to be looked up without reading the model. Artifacts lie next to
the entries, by their digest. `tunefarm.compiler.content_cache` keeps all of them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tunefarm.compiler.content_cache import (
    NOT_WHAT_WAS_KEPT,
    ContentCache,
    cache_key,
    source_digest,
)
from tunefarm.compiler.errors import ArtefactError, TunefarmError, system_errors_as
from tunefarm.compiler.function_modules import modules_digests
from tunefarm.compiler.runtime.artefact.large_files import ChangedFileError, copy_file
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.extents import shapes_to_json
from tunefarm.configs.private_folder import make_private
from tunefarm.configs.settings import cache_folder
from tunefarm.db.sqlite_connection import file_digest, records_stamp
from tunefarm.measure.machine import cpu_name
from tunefarm.tuner.building.model_file import Future
from tunefarm.tuner.building.report import BuildReport
from tunefarm.tuner.building.request import ARTEFACT, BuildRequest, BuildResult, built_artefact
from tunefarm.tuner.calibration.options import CHOSEN

if TYPE_CHECKING:
    from tunefarm.compiler.kernels.kernel import FusedKernel
    from tunefarm.compiler.schedule.schedule import ScheduleChoice

_PACKAGES = ("configs", "db", "measure", "tuner")  # the compiler is in every key
_LIBRARIES = ("numpy", "sqlalchemy", "xgboost")
_UNTUNED = "untuned"  # stands for the records of a build that takes none

Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True)
class KeptArtefact:
    """An artifact that was put into a cache: its digest, and the SHA-256 of the file's chunks."""

    digest: str
    chunks: tuple[str, ...]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> KeptArtefact:
        """The inverse of `dataclasses.asdict`; `KeyError`, `TypeError` or `ValueError` on other
        JSON."""
        digest, chunks = data["digest"], data["chunks"]
        if not all(isinstance(text, str) for text in (digest, *chunks)):
            raise ValueError("digests are text")
        return KeptArtefact(digest, tuple(chunks))


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that was read before: its distinct kernels by workload key, in order of first use."""

    model_hash: str
    kernels: Mapping[str, FusedKernel]


class BuildCache:
    """What the cache has for one request."""

    def __init__(self, folder: Path, request: BuildRequest, target: Target, digest: str) -> None:
        """`digest` is that of the model's file."""
        compile = request.settings.compile
        shapes = sorted(shapes_to_json(request.shapes).items())
        made_from = [program(), digest, request.name, shapes, target.to_json()]
        made_from += [compile.numerics, compile.denormals, target.machine.digest]
        if modules := modules_digests():  # what their type rules say is part of the model
            made_from.append(modules)
        made_from.append(str(compile.threads))  # which estimates, and so chains, depend on
        self._request = request
        self._cache = ContentCache(folder)
        self._databases = request.databases
        self._records: object = None  # their stamp, when nothing was found
        self._kernels_key = cache_key("kernels", *made_from)
        memory = request.settings.limits.memory
        self._artefact_key = [self._kernels_key, memory]
        # What is said of its jobs depends on its place.
        place = "" if request.temporary else os.path.abspath(request.model)
        self._build_key = [*made_from, place, request.fallback, request.listed]
        self._build_key += [memory, request.accept_nominees, cpu_name()]

    @staticmethod
    def of(request: BuildRequest, target: Target, digest: Future[str | None]) -> BuildCache | None:
        """None for what is not kept: other forms, several programs, models in several files, where
        no cache is."""
        folder = cache_folder(request.settings)
        if folder is None or request.form != ARTEFACT or request.dump_after is not None:
            return None
        if request.is_several:
            return None
        if request.settings.compile.numerics in CHOSEN:
            return None  # what was chosen is known when the model has been read
        known = digest.result()
        return None if known is None else BuildCache(folder, request, target, known)

    def repeated(self) -> BuildResult | None:
        """Put what was made from the same bytes to the output; None if nothing was.

        Raises TunefarmError as `place` does.
        """
        records = self._records_digest()
        found = None if records is None else self._find(self._key(records), self._result)
        unlisted = found is not None and found.not_listed and self._can_list()
        if found is not None and not unlisted and self.place(found):
            return found
        self._records = self._records_stamp()
        return None

    def remember(self, result: BuildResult) -> None:
        """Keep what was built since `repeated` was asked, unless the records changed meanwhile.

        The build itself may have been listed.
        """
        if result.kept is None or (result.not_listed and self._can_list()):
            return
        records = self._records_digest()
        same = self._records is not None and self._records_stamp() == self._records
        if records is None or not same or self._records_digest() != records:
            return
        facts = {
            "report": result.report.to_json(),
            "model_hash": result.model_hash,
            "kept": asdict(result.kept),
            "not_listed": result.not_listed,
        }
        self._cache.add(self._key(records), facts)

    def model(self) -> KnownModel | None:
        """What was read of the model before; None with a fallback, which is not looked up so."""
        if self._request.fallback:
            return None
        from tunefarm.compiler.kernels.serialize import kernel_from_json
        from tunefarm.compiler.kernels.workload_key import workload_key

        def known(facts: Any) -> KnownModel:
            kernels = [kernel_from_json(value) for value in facts["kernels"]]
            by_key = {workload_key(kernel): kernel for kernel in kernels}
            return KnownModel(str(facts["model_hash"]), by_key)

        return self._find(self._kernels_key, known)

    def artefact(
        self, model: KnownModel, chosen: Mapping[str, ScheduleChoice | None]
    ) -> tuple[tuple[KernelReport, ...], KeptArtefact] | None:
        """The artifact of a model with these schedules, and how its kernels were built."""

        def known(facts: Any) -> tuple[tuple[KernelReport, ...], KeptArtefact]:
            reports = tuple(KernelReport.from_json(report) for report in facts["kernels"])
            return reports, KeptArtefact.from_json(facts["kept"])

        return self._find(self._key_of_schedules(model, chosen), known)

    def remember_artefact(
        self,
        model: KnownModel,
        chosen: Mapping[str, ScheduleChoice | None],
        reports: Sequence[KernelReport],
        kept: KeptArtefact,
    ) -> None:
        """Keep what `model` and `artefact` find."""
        if self._request.fallback:
            return
        from tunefarm.compiler.kernels.serialize import kernel_to_json

        values = [kernel_to_json(kernel) for kernel in model.kernels.values()]
        known = {"model_hash": model.model_hash, "kernels": values}
        self._cache.add(self._kernels_key, known)
        facts = {"kept": asdict(kept), "kernels": [asdict(report) for report in reports]}
        self._cache.add(self._key_of_schedules(model, chosen), facts)

    def keep(self, digest: str) -> KeptArtefact | None:
        """Copy the artifact at the output into the cache; None if that fails, or would fill more
        than half of it."""
        output = Path(self._request.output)
        try:
            if output.stat().st_size > self._cache.most_bytes // 2:
                return None
            path = self._path(digest)
            make_private(path.parent)
            chunks = copy_file(output, path)
        except (OSError, ChangedFileError):
            return None
        self._cache.trim()
        return KeptArtefact(digest, chunks)

    def place(self, result: BuildResult) -> bool:
        """Copy a kept artifact to the output; False if it is not there any more, or is damaged.

        Raises TunefarmError if too little of it is tuned or confirmed, or the output cannot be
        written.
        """
        self._request.check(result.report)
        kept = result.kept
        if kept is None:
            return False
        path, output = self._path(kept.digest), Path(self._request.output)
        try:
            with system_errors_as(ArtefactError, f"write {output}"):
                copy_file(path, output, kept.chunks)
        except ChangedFileError:
            with suppress(OSError):
                path.unlink()
            return False
        with suppress(OSError):
            os.utime(path)  # what was used last stays
        return True

    def _find(self, key: str, read: Callable[[Any], Facts]) -> Facts | None:
        """What `read` makes of an entry's facts; None if there is none, or it has others."""
        found = self._cache.find(key)
        if found is None:
            return None
        try:
            return read(found[0])
        except (TunefarmError, *NOT_WHAT_WAS_KEPT):
            return None

    def _result(self, facts: Any) -> BuildResult:
        kept = KeptArtefact.from_json(facts["kept"])
        return built_artefact(
            self._request.output,
            BuildReport.from_json(facts["report"]),
            str(facts["model_hash"]),
            kept.digest,
            kept,
            str(facts["not_listed"]),
        )

    def _key(self, records: str) -> str:
        return cache_key("build", records, *self._build_key)

    def _key_of_schedules(
        self, model: KnownModel, chosen: Mapping[str, ScheduleChoice | None]
    ) -> str:
        uses = [[key, _choice_to_json(chosen.get(key))] for key in model.kernels]
        return cache_key("artefact", *self._artefact_key, uses)

    def _path(self, digest: str) -> Path:
        return self._cache.path(cache_key("artefact", digest))

    def _can_list(self) -> bool:
        """Whether the database can be written, so that what failed once need not fail again."""
        return self._request.is_listed and os.access(self._databases[0], os.W_OK)

    def _records_digest(self) -> str | None:
        """Of all databases that are asked; None where one of them cannot be told by its bytes."""
        if not self._databases:
            return _UNTUNED
        found = [file_digest(url) for url in self._databases]
        known = [digest for digest in found if digest is not None]
        return ",".join(known) if len(known) == len(found) else None

    def _records_stamp(self) -> object:
        if not self._databases:
            return _UNTUNED
        found = [records_stamp(url) for url in self._databases]
        return None if None in found else tuple(found)


def _choice_to_json(choice: ScheduleChoice | None) -> list[Any] | None:
    if choice is None:
        return None
    return [choice.schedule.to_json(), choice.source, choice.record_id, choice.latency]


@cache
def program() -> tuple[str, ...]:
    """What chooses schedules, and writes the caches' entries: this project's packages, and the
    libraries that they ask."""
    root = Path(__file__).parents[2]
    parts = [source_digest(root / package) for package in _PACKAGES]
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            status = os.stat(spec.origin)  # of another version it is another file
            parts.append(f"{name} {status.st_size} {status.st_mtime_ns}")
    return tuple(parts)
