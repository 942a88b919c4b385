"""Reading a model in the background, while its builder imports the rest of what it needs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING

from configs.settings import Settings
from tuner.building.forms import ARTEFACT
from tuner.building.model_digest import ModelDigest
from tuner.targets import target_of

if TYPE_CHECKING:
    from compiler.graph.ir import Graph
    from compiler.kernels.kernel import FusedKernel
    from tuner.building.build_cache import KnownModel

Shapes = Mapping[str, tuple[int, ...]]


def begin_reading(
    form: str,
    model: str | PathLike[str],
    settings: Settings,
    shapes: Shapes | None,
    *,
    fallback: bool,
    digest: ModelDigest | None = None,
) -> ModelReading:
    """Begin to read a model that is to be built to this form: plain artefacts are looked up.

    `digest` is the file's, if that has been begun.
    """
    if form != ARTEFACT or fallback:
        return ModelReading(model, settings, shapes, None)
    return ModelReading(model, settings, shapes, digest or ModelDigest(model))


class ModelReading:
    """A model that a thread looks up among those built before and, if it is not there, reads.

    `measure.sandbox.import_model` reads it, in a process of its own.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        settings: Settings,
        shapes: Shapes | None,
        digest: ModelDigest | None,
    ) -> None:
        """Begins at once; without the file's digest the model is read in any case."""
        self._model, self._shapes = model, shapes
        self._settings = settings
        self._known: KnownModel | None = None
        self._kernels: dict[str, FusedKernel] | None = None
        self._graph: Graph | None = None
        self._error: Exception | None = None
        self._looked_up = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(digest,), daemon=True)
        self._thread.start()

    def look_up(self) -> tuple[KnownModel | None, dict[str, FusedKernel] | None]:
        """What is known of the model's builds (None if they are not kept), and its kernels (None
        if it was not built before)."""
        self._looked_up.wait()
        return self._known, self._kernels

    def graph(self) -> Graph:
        """The model. Raises what `measure.sandbox.import_model` raises."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._graph is None:
            self._graph = self._imported()
        return self._graph

    def _read(self, digest: ModelDigest | None) -> None:
        try:
            if digest is not None:
                from tuner.building.build_cache import KnownModel

                target = target_of(self._settings)
                self._known = KnownModel.of(
                    self._model, digest, self._settings, target, self._shapes
                )
            if self._known is not None:
                self._kernels = self._known.kernels()
            self._looked_up.set()
            if self._kernels is None:
                self._graph = self._imported()
        except Exception as error:  # noqa: BLE001 - raised again where the model is asked for
            self._error = error
        finally:
            self._looked_up.set()

    def _imported(self) -> Graph:
        from measure.sandbox.import_model import import_model
        from tuner.limits import limits_of

        return import_model(self._model, self._shapes, limits_of(self._settings))
