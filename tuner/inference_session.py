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
from tunefarm.compiler.types.extents import Shapes
from tunefarm.configs.settings import load_settings
from tunefarm.tuner.building.in_memory import build_in_memory
from tunefarm.tuner.building.request import BuildRequest


class InferenceSession(BuiltSession):
    """A model that is run as with onnxruntime; an ONNX file is built as by `tunefarm.build`."""

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | Executable,
        sess_options: object = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        db: str | PathLike[str] | None = None,
        config: str | None = None,
        numerics: str | None = None,
        denormals: str | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        """Load an artefact, or build an ONNX file from the best records of `db`.

        `db`, `config` (a preset or TOML file), `numerics`, `denormals` and `shapes` are those of
        `tunefarm.build`, and of no account for an artefact. Code that was compiled before comes
        from the cache.
        Raises as `tunefarm.InferenceSession` and `tunefarm.build` do.
        """
        self._overrides = {
            "database.url": None if db is None else fspath(db),
            "compile.numerics": numerics,
            "compile.denormals": denormals,
        }
        self._config = config
        super().__init__(path_or_bytes, sess_options, providers, provider_options, shapes=shapes)

    def build(self, path: str, threads: int | None, shapes: Shapes | None) -> Executable:
        """Build an ONNX file for the session; `threads` None: those of the configuration."""
        settings = load_settings(self._config, {**self._overrides, "compile.threads": threads})
        # The caller of this is the session's opening, of that its __init__, twice.
        return build_in_memory(BuildRequest(path, "", settings, shapes or {}), stacklevel=5)
