"""The command that builds what was tuned: `tune` prints it at its end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm.compiler.types.extents import Shapes, fixed_inputs, open_shapes

if TYPE_CHECKING:  # Pydantic, which may be missing
    from tunefarm.configs.settings import Settings


def next_build(
    model: str,
    settings: Settings,
    config: str | None,
    shapes: Shapes,
    typed_db: str | None,
    functions: Sequence[str] = (),
) -> str:
    """`tune build` with the options of a job; a database that was not typed may have a password."""
    from tunefarm.configs.settings import shown_precision

    command = ["tune", "build", model]
    if typed_db is not None or "://" not in settings.database.url:
        command += ["--db", typed_db or settings.database.url]  # else a password may be in it
    command += ["--output", Path(model).with_suffix(".tuned").name]
    if settings.compile.threads != 1:
        command += ["--threads", str(settings.compile.threads)]
    if settings.compile.numerics != "default":
        command += ["--precision", shown_precision(settings.compile.numerics)]
    if settings.compile.denormals != "flush":
        command += ["--denormals", settings.compile.denormals]
    if settings.compile.targets:
        command += ["--targets", ",".join(settings.compile.targets)]
    if settings.search.plan == "rules" and config is None:
        command += ["--plan", settings.search.plan]
    if settings.limits.memory is not None and config is None:
        command += ["--max-memory", str(settings.limits.memory)]
    if config is not None:
        command += ["--config", config]
    for module in functions:
        command += ["--functions", module]
    for name, value in fixed_inputs(shapes).items():
        command += ["--input", f"{name}={value}"]
    for name, shape in open_shapes(shapes).items():
        command += ["--shape", f"{name}={','.join(map(str, shape))}"]
    return shlex.join(command)
