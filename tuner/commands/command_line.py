"""What every command needs: files checked before, results shown, and errors as one line."""

from __future__ import annotations

import inspect
import json
import logging
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.exceptions import TyperException

from tunefarm.configs.errors import SettingsError, TunefarmError, system_errors_as
from tunefarm.configs.files import write_text
from tunefarm.configs.memory_room import require_libraries
from tunefarm.configs.resource_limits import limit_behind
from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.usage import is_help, usage_message
from tunefarm.tuner.commands.verbosity import (
    LOG,
    OutputError,
    abandon_stdout,
    is_quiet,
    note,
    set_verbosity,
)
from tunefarm.tuner.interrupt import exit_code, interrupted, interruption
from tunefarm.tuner.reports.terminal import console, printable_json, printable_streams

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tunefarm.configs.settings import Settings


_NAMES = ("tune", "tunefarm")


def run_command(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. Errors and warnings become a line each on stderr."""
    set_verbosity()
    with printable_streams(), warnings.catch_warnings():
        warnings.showwarning = _note
        return _run(app, arguments)


def _note(message: Warning | str, *_where: object, **_options: object) -> None:
    note(str(message))


def _run(app: typer.Typer, arguments: Sequence[str]) -> int:
    debug = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"]
    try:
        require_libraries()
        code = _invoke(app, rest)
        sys.stdout.flush()
        return code
    except TyperException as error:
        if is_help(error):
            print(error.format_message(), file=sys.stderr)
            return error.exit_code
        return _fail(usage_message(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        abandon_stdout()
        return 1
    except TunefarmError as error:
        if interrupted():
            return _interrupted()
        if isinstance(error, OutputError):
            abandon_stdout()
        if debug:
            traceback.print_exc()
            print(error.program, file=sys.stderr)
        return _fail(str(error), 1)
    except Exception as error:  # noqa: BLE001 - a bug of ours: the user gets one line as well
        if interrupted():  # some libraries make something else of it
            return _interrupted()
        limit = limit_behind(error)
        if isinstance(error, OSError) and (limit or error.filename is not None) and not debug:
            where = "" if error.filename is None else f"{error.filename}: "
            why = error.strerror or error
            return _fail(f"{where}{why}" + (f" ({limit})" if limit else ""), 1)
        if limit and not debug:
            return _fail(f"{error}: {limit}", 1)
        if debug:
            traceback.print_exc()
            return _fail(f"{type(error).__name__}: {error}", 1)
        return _fail(f"unexpected {type(error).__name__}: {error}; {_keep_traceback()}", 1)


def _invoke(app: typer.Typer, arguments: Sequence[str]) -> int:
    _evaluate_annotations(app)
    command = typer.main.get_command(app)
    name = program_name()
    try:
        if not arguments and (code := _completed(command, name)) is not None:
            return code
        with command.make_context(name, list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _evaluate_annotations(app: typer.Typer) -> None:
    """Evaluate the annotations of commands once: typer does so six times for each that is text."""
    for registered in app.registered_commands:
        function = registered.callback
        if function is not None:
            function.__annotations__ = inspect.get_annotations(function, eval_str=True)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _evaluate_annotations(group.typer_instance)


def program_name() -> str:
    """The name by which the command was called, of the two that it has."""
    name = Path(sys.argv[0]).name
    return name if name in _NAMES else _NAMES[0]


def _completed(command: Any, name: str) -> int | None:
    """The exit code of an answer to a shell that completes, which gives no arguments, else None."""
    from tunefarm.configs.settings import completion_asked

    variable = f"_{name.upper()}_COMPLETE"
    asked = completion_asked(variable)
    if not asked:
        return None
    from typer.completion import shell_complete

    return shell_complete(command, {}, name, variable, asked)


def _interrupted() -> int:
    print(interruption(), file=sys.stderr)
    return exit_code()


def _fail(message: str, code: int) -> int:
    line = " ".join(part.strip() for part in message.splitlines() if part.strip())
    print(f"error: {line or 'no reason given'}", file=sys.stderr)
    return code


def _keep_traceback() -> str:
    """Write the current traceback to a file; where it went."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="tune-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            file.write(traceback.format_exc())
    except OSError:
        return "--debug shows the traceback"
    return f"the traceback is in {file.name}, --debug shows it"


def prepare(
    settings: Settings,
    config: str | None,
    model: str,
    writes: Iterable[str | None],
    reads: Iterable[str] = (),
) -> None:
    """Refuse, before the work, to write what a command reads; print a note if there is no cache.

    `config` is what the settings were read from, `reads` are other files that the command reads.
    Raises SettingsError.
    """
    from tunefarm.configs.settings import cache_problem, files_read

    read: list[str | PathLike[str]] = [*files_read(config, settings), *reads]
    check_files(writes=writes, reads=read, databases=[settings.database.url], model=model)
    if problem := cache_problem(settings):
        note(problem)
    if LOG.isEnabledFor(logging.INFO):
        given = settings.model_dump(mode="json", exclude_unset=True, exclude={"database"})
        LOG.info("model %s, settings that were given: %s", model, json.dumps(given))
        LOG.debug("all settings: %s", json.dumps(settings.to_json() | {"database": "…"}))


def report_tiles(settings: Settings) -> None:
    """Print a note if code for this machine cannot use the matrix tiles that its CPU has."""
    from tunefarm.compiler.target import host_tile_refusal  # loading LLVM takes long
    from tunefarm.configs.settings import HOST

    named = settings.compile.targets or (settings.compile.target or HOST,)
    if HOST in named and (refusal := host_tile_refusal()):
        note(f"the code does not use matrix tiles (AMX): {refusal}")


def show(path: str | None, value: Any, *parts: RenderableType) -> None:
    """Write a result as JSON to `path`, and print it for people unless that is stdout, or the
    command is to be quiet."""
    write_json(path, value)
    if path == "-" or is_quiet():
        return
    for part in parts:
        if isinstance(part, str):
            print(part)
        else:
            console().print(part)


def write_json(path: str | None, value: Any) -> None:
    """Write a result as JSON; "-" is stdout, None writes nothing."""
    if path is None:
        return
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if path == "-":
        print(printable_json(text))
    else:
        write_file(path, text + "\n")


def write_file(path: str, text: str) -> None:
    """Write a text file as a whole. Raises SettingsError where that fails."""
    with system_errors_as(SettingsError, f"write {path}"):
        write_text(path, text)
