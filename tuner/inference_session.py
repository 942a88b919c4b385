"""InferenceSession with a database: ONNX files are built from the best records.

import tunefarm

session = tunefarm.InferenceSession("resnet18.onnx", db="tuning.db")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.session.inference_session import InferenceSession as BuiltSession
from tunefarm.compiler.types.extents import Shapes, with_fixed
from tunefarm.compiler.types.numerics import one_precision
from tunefarm.configs.settings import has_database, load_settings
from tunefarm.measure.cpus import run_threads
from tunefarm.tuner.building.flow import build_and_note
from tunefarm.tuner.building.request import BuildRequest


class InferenceSession(BuiltSession):
    """A model that is run as with onnxruntime; an ONNX file is built as by `tunefarm.build`."""

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes | Executable,
        sess_options: object = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        db: str | PathLike[str] | None = None,
        config: str | None = None,
        precision: str | None = None,
        denormals: str | None = None,
        shapes: Shapes | None = None,
        inputs: Mapping[str, object] | None = None,
        numerics: str | None = None,
        **ignored: object,
    ) -> None:
        """Load an artifact, or build an ONNX file from the best records of `db`.

        `db`, `config` (a preset or TOML file), `precision` (formerly `numerics`), `denormals`,
        `shapes` and `inputs` are those of `tunefarm.build` and have no effect on an artifact. Code
        that was compiled before comes from the cache.
        Raises as `tunefarm.InferenceSession` and `tunefarm.build` do.
        """
        self._overrides = {
            "database.url": None if db is None else fspath(db),
            "compile.precision": one_precision(precision, numerics),
            "compile.denormals": denormals,
        }
        self._config = config
        super().__init__(
            path_or_bytes,
            sess_options,
            providers,
            provider_options,
            shapes=shapes,
            inputs=inputs,
            **ignored,
        )

    def build(
        self,
        path: str,
        threads: int | None,
        shapes: Shapes,
        inputs: Mapping[str, object] | None,
    ) -> tuple[Executable, str]:
        """Build an ONNX file for the session.

        The default of `threads` is that of the configuration, for which its records are, and where
        there are no records all cores, as in onnxruntime.
        """
        settings = load_settings(self._config, {**self._overrides, "compile.threads": threads})
        if threads is None and self._config is None and not has_database(settings):
            threads = run_threads()
            settings = load_settings(None, {**self._overrides, "compile.threads": threads})
        is_copy = self._folder is not None
        fixed = with_fixed(shapes, inputs)
        return build_and_note(BuildRequest(path, "", settings, fixed, temporary=is_copy))
