"""What shells complete after `tune`: files, jobs, and the names that options take.

A shell asks in a process of its own, by a variable of the environment and without arguments. Only
then is anything of this imported; what cannot be found out is no completion, and no error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import typer

from tunefarm.compiler.errors import TunefarmError
from tunefarm.tuner.commands.command_files import DEFAULT_DATABASE, EMIT

Values: TypeAlias = Callable[[typer.Context, str], Sequence[str]]
"""The values that may be meant by the beginning of one."""

_MOST_JOBS = 50


@dataclass(frozen=True, slots=True)
class Item:
    """A completion as shells are told it."""

    value: str
    type: str = "plain"
    help: str | None = None


def complete_values(command: Any) -> None:
    """Have all parameters of a command, and of those below it, complete their values."""
    for each in _commands(command):
        options = (item for item in each.params if item.param_type_name == "option")
        if any(option.name == "model" for option in options):
            each.shell_complete = _with_models(each.shell_complete)
    for name, parameter in _parameters(command):
        values = _VALUES.get(f"{name} {parameter.name}") or _VALUES.get(parameter.name)
        values = _jobs if parameter.metavar == "JOB" else values
        if values is not None:
            # It is a method of the parameter's class: an instance may have its own.
            parameter.shell_complete = _completer(values)


def _commands(command: Any) -> Iterator[Any]:
    """A command and those below it."""
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _commands(below)


def _with_models(shell_complete: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """What a command completes its arguments with, and models, which need no option."""
    models = _completer(_files(".onnx"))
    return lambda context, word: [*shell_complete(context, word), *models(context, word)]


def _parameters(command: Any) -> Iterator[tuple[str, Any]]:
    """All parameters with the names of their commands."""
    for each in _commands(command):
        yield from ((each.name or "", parameter) for parameter in each.params)


def _completer(values: Values) -> Callable[[typer.Context, str], list[Item]]:
    def complete(context: typer.Context, incomplete: str) -> list[Item]:
        try:
            found = values(context, incomplete)
        except (OSError, TunefarmError):
            return []
        return [Item(value) for value in found if value.startswith(incomplete)]

    return complete


def _files(*suffixes: str) -> Values:
    """Files by their suffix, in the folder that was begun; the shell itself completes folders."""

    def values(context: typer.Context, incomplete: str) -> list[str]:
        folder, _, start = incomplete.rpartition("/")
        shown = incomplete[: len(incomplete) - len(start)]
        names = sorted(os.listdir(folder or ("/" if shown else ".")))
        return [f"{shown}{name}" for name in names if name.endswith(suffixes)]

    return values


def _words(*words: str) -> Values:
    return lambda context, incomplete: words


def _listed(values: Values) -> Values:
    """Several values with commas between: the last one completes."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        done = incomplete[: incomplete.rfind(",") + 1]
        last = incomplete[len(done) :]
        return [f"{done}{value}" for value in values(context, last)]

    return complete


def _presets(context: typer.Context, incomplete: str) -> list[str]:
    from tunefarm.configs.settings import presets

    return [*presets(), *_files(".toml")(context, incomplete)]


def _targets(context: typer.Context, incomplete: str) -> list[str]:
    from tunefarm.configs.settings import HOST, targets

    return [HOST, *targets(), *_files(".toml")(context, incomplete)]


def _forms(context: typer.Context, incomplete: str) -> Sequence[str]:
    return [*EMIT]


def _engines(context: typer.Context, incomplete: str) -> Sequence[str]:
    from tunefarm.tuner.commands.engines import ENGINES

    return sorted(ENGINES)


def _compiler_stages(context: typer.Context, incomplete: str) -> Sequence[str]:
    from tunefarm.compiler.pipeline import STAGES

    return ["all", *STAGES]


def _programs(context: typer.Context, incomplete: str) -> Sequence[str]:
    from tunefarm.tuner.commands.inspect_model import STAGES_TO_INSPECT

    return STAGES_TO_INSPECT


def _networks(context: typer.Context, incomplete: str) -> Sequence[str]:
    from tunefarm.compiler.frontend.zoo import model_names

    return sorted(model_names())


def _pages(context: typer.Context, incomplete: str) -> Sequence[str]:
    from tunefarm.tuner.docs.pages import PAGES, REFERENCES

    return sorted({*REFERENCES, *(path.stem for path in PAGES.glob("*.md"))})


def _jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the newest jobs of the database, and the name of the last one."""
    database = str(context.params.get("db") or DEFAULT_DATABASE)
    if "://" not in database and not Path(database).is_file():
        return []
    from tunefarm.db import queries
    from tunefarm.db.store import Store

    with Store.open(database, create=False, read_only=True) as store:
        return ["last", *(job.id for job in queries.jobs(store)[:_MOST_JOBS])]


_VALUES: dict[str, Values] = {
    "model": _files(".onnx"),
    "db": _files(".db"),
    "config": _presets,
    "targets": _listed(_targets),
    "numerics": _words(
        "strict", "default", "deterministic", "int8-activations", "bf16", "fp16", "int8", "auto"
    ),
    "denormals": _words("flush", "keep"),
    "runner": _words("ray", "local"),
    "calibration": _files(".npz", ".npy"),
    "functions": _files(".py"),
    "dump_after": _compiler_stages,
    "build emit": _forms,
    "run artifact": _files(".tuned"),
    "bench against": _listed(_engines),
    "zoo name": _networks,
    "zoo form": _words("qdq", "qoperator"),
    "inspect stage": _programs,
    "docs page": _pages,
}
"""By the parameter's name, or by the command's and that."""
