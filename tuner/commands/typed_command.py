"""The command line of a job, from what was typed, such that it means the same in any folder; and
the one that builds what it tuned.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tunefarm.compiler.types.extents import Shapes, fixed_inputs, open_shapes
from tunefarm.configs.clock import steady_time
from tunefarm.tuner.records.job_command import JobCommand, without

if TYPE_CHECKING:
    from tunefarm.configs.settings import Settings
    from tunefarm.tuner.building.explain import Commands

_FILES = {
    *("model", "machine", "calibration", "labels"),
    *("json", "json_progress"),
}
_OF_ONE_RUN = {"db", "quiet", "verbose", "version"}
"""What is not kept of a job's command: the database is, as an absolute path."""
_NOT_OF_VERIFY = ("--machine", "--max-memory")
"""The options of a build that `tune verify` does not take."""
_STDOUT = "-"
_DATABASE = "database"  # in the object of a context: of the job that goes on


def typed_command(context: typer.Context, settings: Settings, started: float) -> JobCommand:
    """The command of this `context` that began at `started`, a moment of `time.monotonic`.

    It names the database of the settings, if that is a file.
    """
    arguments: list[str] = []
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        if value is None or value is False or name in _OF_ONE_RUN:
            continue
        option = max(parameter.opts, key=len)
        if value is True:
            arguments.append(option)
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            arguments += [option, _anywhere(name, item)]
    if "://" not in settings.database.url and settings.database.url != ":memory:":
        arguments += ["--db", os.path.abspath(settings.database.url)]
    began = steady_time() - (time.monotonic() - started)
    return JobCommand(tuple(arguments), os.getcwd(), began, settings.search.minutes)


def _anywhere(name: str, value: Any) -> str:
    """The value of an option, with files as absolute paths."""
    from tunefarm.configs.settings import presets

    text = str(value)
    if name in _FILES:
        return text if text == _STDOUT else os.path.abspath(text)
    if name == "config":
        return text if text in presets() else os.path.abspath(text)
    if name == "functions":
        is_file = text.endswith(".py") or os.sep in text
        return os.path.abspath(text) if is_file else text
    if name == "metric":
        file, colon, function = text.rpartition(":")
        return f"{os.path.abspath(file)}:{function}" if colon else text
    if name == "targets":
        return ",".join(_target(part.strip()) for part in text.split(","))
    return text


def _target(name: str) -> str:
    is_file = name.endswith(".toml") or os.sep in name
    return os.path.abspath(name) if is_file and Path(name).exists() else name


def resumed(context: typer.Context, arguments: list[str], database: str) -> None:
    """Run `tune` with these arguments, as `tune resume` does for a job of the database."""
    command = context.find_root().command
    with command.make_context("tune", arguments, obj={_DATABASE: database}) as again:
        command.invoke(again)


def to_go_on(context: typer.Context, job: str, moved: str = "") -> str:
    """What goes on with an interrupted job: the same command again, or `tune resume`, which names
    where the database is that was `moved` meanwhile."""
    if moved:
        return shlex.join(["tune", "resume", job[:8], "--db", moved])
    if not (isinstance(context.obj, dict) and _DATABASE in context.obj):
        return shlex.join(["tune", *sys.argv[1:]])
    return shlex.join(["tune", "resume", job[:8], "--db", context.obj[_DATABASE]])


def next_build(
    model: str,
    settings: Settings,
    config: str | None,
    shapes: Shapes,
    typed_db: str | None,
    functions: Sequence[str] = (),
) -> str:
    """`tune build` with the options of a job; a database that was not typed may have a password."""
    options = _options(settings, config, shapes, typed_db, functions)
    output = Path(model).with_suffix(".tuned").name
    return shlex.join(["tune", "build", model, *options, "--output", output])


def next_commands(
    model: str,
    settings: Settings,
    config: str | None,
    shapes: Shapes,
    typed_db: str | None,
    functions: Sequence[str] = (),
) -> Commands:
    """`tune verify --quick` and `tune` with the options of a build."""
    from tunefarm.tuner.building.explain import Commands
    from tunefarm.tuner.from_settings import target_of

    layers = ",".join(settings.database.layers)
    more = ["--quick", *(["--layers", layers] if config is None and layers else [])]
    verify = {}
    for one in _each_target(settings):
        options = _options(one, config, shapes, typed_db, functions)
        words = ["tune", "verify", model, *without(options, _NOT_OF_VERIFY), *more]
        verify[target_of(one).cpu] = shlex.join(words)
    options = _options(settings, config, shapes, typed_db, functions)
    return Commands(verify, shlex.join(["tune", model, *options]))


def _each_target(settings: Settings) -> list[Settings]:
    """The settings for each of their targets alone."""
    compile = settings.compile
    each = [compile.model_copy(update={"targets": (name,)}) for name in compile.targets]
    return [settings.model_copy(update={"compile": one}) for one in each or [compile]]


def _options(
    settings: Settings,
    config: str | None,
    shapes: Shapes,
    typed_db: str | None,
    functions: Sequence[str],
) -> list[str]:
    """The options of a build, as commands on the same model take them."""
    from tunefarm.configs.settings import shown_precision

    command: list[str] = []
    if typed_db is not None or "://" not in settings.database.url:
        command += ["--db", typed_db or settings.database.url]  # else a password may be in it
    if settings.compile.threads != 1:
        command += ["--threads", str(settings.compile.threads)]
    if settings.compile.numerics != "default":
        command += ["--precision", shown_precision(settings.compile.numerics)]
    if settings.compile.denormals != "flush":
        command += ["--denormals", settings.compile.denormals]
    if settings.compile.targets:
        command += ["--targets", ",".join(settings.compile.targets)]
    if settings.compile.machine is not None:
        command += ["--machine", settings.compile.machine]
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
    return command
