"""Builds that were made before: the same model and the same schedules give the same artefact.

The first entry of a build says which kernels a model has, so that their schedules can be looked up
without reading the model; the second one, found by kernels and schedules, names the artefact.
A model is known by the SHA-256 of its file, see `tuner.building.model_digest`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any

from compiler.content_cache import NOT_WHAT_WAS_KEPT, ContentCache, cache_key
from compiler.errors import TunefarmError
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.serialize import kernel_from_json, kernel_to_json
from compiler.kernels.workload_key import workload_key
from compiler.runtime.kernel_report import KernelReport
from compiler.schedule.choice import ChooseSchedule, ScheduleChoice
from compiler.target import Target
from compiler.types.dtypes import DType
from configs.settings import Settings, cache_folder
from tuner.building.build_key import compile_parts, model_parts
from tuner.building.kept_artefacts import KeptArtefact
from tuner.building.model_digest import ModelDigest


class KnownModel:
    """What the cache knows of one model, for one target and one way to compile it."""

    def __init__(self, cache: ContentCache, model_key: str, rest: Sequence[object]) -> None:
        self.model_hash = ""
        self.cache = cache
        self._kernels_key = cache_key("kernels", model_key)
        self._rest = rest

    @staticmethod
    def of(
        path: str | PathLike[str],
        digest: ModelDigest,
        settings: Settings,
        target: Target,
        shapes: Mapping[str, tuple[int, ...]] | None,
    ) -> KnownModel | None:
        """The model in the file `path`; None if it has no digest, or nothing is kept."""
        folder = cache_folder(settings)
        known = None if folder is None else digest.result()
        if folder is None or known is None:
            return None
        model_key = cache_key(*model_parts(path, known, shapes), target.lanes(DType.F32))
        return KnownModel(ContentCache(folder), model_key, compile_parts(settings, target))

    def kernels(self) -> dict[str, FusedKernel] | None:
        """The model's distinct kernels by workload key, in order of first use, if known."""
        found = self.cache.find(self._kernels_key)
        if found is None:
            return None
        try:
            kernels = [kernel_from_json(value) for value in found[0]["kernels"]]
            model_hash = found[0]["model_hash"]
        except (TunefarmError, *NOT_WHAT_WAS_KEPT):
            return None
        self.model_hash = str(model_hash)
        return {workload_key(kernel): kernel for kernel in kernels}

    def artefact(
        self, kernels: Mapping[str, FusedKernel], choose: ChooseSchedule | None
    ) -> tuple[tuple[KernelReport, ...], KeptArtefact] | None:
        """The artefact of these kernels with the schedules that are chosen now, and its report."""
        chosen = {} if choose is None else {key: choose(kernel) for key, kernel in kernels.items()}
        found = self.cache.find(self._artefact_key(kernels, chosen))
        if found is None:
            return None
        try:
            reports = tuple(KernelReport.from_json(report) for report in found[0]["kernels"])
            return reports, KeptArtefact.from_json(found[0]["kept"])
        except NOT_WHAT_WAS_KEPT:
            return None

    def remember(
        self,
        kernels: Mapping[str, FusedKernel],
        chosen: Mapping[str, ScheduleChoice],
        reports: Iterable[KernelReport],
        model_hash: str,
        kept: KeptArtefact,
    ) -> None:
        """Keep what was built."""
        values = [kernel_to_json(kernel) for kernel in kernels.values()]
        self.cache.add(self._kernels_key, {"model_hash": model_hash, "kernels": values})
        facts = {"kept": kept.to_json(), "kernels": [asdict(report) for report in reports]}
        self.cache.add(self._artefact_key(kernels, chosen), facts)

    def _artefact_key(
        self, kernels: Mapping[str, FusedKernel], chosen: Mapping[str, ScheduleChoice | None]
    ) -> str:
        uses = [[key, _choice_to_json(chosen.get(key))] for key in kernels]
        return cache_key("artefact", self._kernels_key, *self._rest, uses)


def _choice_to_json(choice: ScheduleChoice | None) -> list[Any] | None:
    if choice is None:
        return None
    return [choice.schedule.to_json(), choice.source, choice.record_id, choice.latency]
