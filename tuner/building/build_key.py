"""What a build is made from, as the parts of the keys under which caches have it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from compiler.content_cache import source_digest
from compiler.target import Target
from configs.settings import Settings

_PACKAGES = ("configs", "db", "measure", "tuner")  # the compiler is in every key
_LIBRARIES = ("numpy", "sqlalchemy", "xgboost")


def model_parts(
    path: str | PathLike[str], digest: str, shapes: Mapping[str, tuple[int, ...]] | None
) -> list[Any]:
    """The model: its file's digest, its name, and the shapes that are fixed."""
    fixed = sorted((name, list(shape)) for name, shape in (shapes or {}).items())
    return [program(), digest, Path(path).stem, fixed]


def compile_parts(settings: Settings, target: Target) -> list[Any]:
    """What of the settings a build depends on."""
    return [target.to_json(), settings.compile.threads, settings.compile.numerics]


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
