"""What every command needs: parsed values, JSON, and errors as one line."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from configs.errors import SettingsError, TunefarmError
from configs.files import write_text
from tuner.commands.interrupt import exit_code, interrupted
from tuner.commands.streams import OutputError, abandon_stdout
from tuner.commands.terminal import printable_json, printable_streams

DbOption = Annotated[
    str | None,
    typer.Option("--db", metavar="FILE|URL", help="Tuning database [default: tuning.db]."),
]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON (- stdout).")
]
EmitOption = Annotated[
    str,
    typer.Option(
        metavar="FORM",
        help="artefact: for tune run and Python. c-header+shared-library: into a folder, with an "
        "example. object: the same functions and constants to be linked in, its header beside it. "
        "llvm, asm: the code as text, without constants. graph: JSON, of constants the SHA-256.",
    ),
]


class UsageError(typer.BadParameter):
    """Options that make no sense together or cannot be read; exit code 2."""

    def format_message(self) -> str:
        return self.message


def run_command(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. Every error becomes one line on stderr."""
    with printable_streams():
        return _run(app, arguments)


def _run(app: typer.Typer, arguments: Sequence[str]) -> int:
    debug = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"]
    try:
        code = _invoke(app, rest)
        sys.stdout.flush()
        return code
    except TyperException as error:
        return _fail(error.format_message(), error.exit_code)
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
        if isinstance(error, OSError) and error.filename is not None and not debug:
            return _fail(f"{error.filename}: {error.strerror or error}", 1)
        if debug:
            traceback.print_exc()
            return _fail(f"{type(error).__name__}: {error}", 1)
        return _fail(f"unexpected {type(error).__name__}: {error}; {_keep_traceback()}", 1)


def _invoke(app: typer.Typer, arguments: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("tune", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return exit_code()


def end_at_once() -> NoReturn:
    """End the process, successfully, without taking the interpreter apart object by object.

    That takes a third of a second after a build, when nothing is left to be closed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


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


def overrides(
    db: str | None,
    threads: int | None,
    trials: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    runner: str | None = None,
    address: str | None = None,
) -> dict[str, object]:
    """Options as keys of the settings; None means "not given"."""
    return {
        "database.url": db,
        "compile.threads": threads,
        "search.total_trials": trials,
        "search.minutes": minutes,
        "search.seed": seed,
        "measure.runner": runner,
        "measure.address": address,
    }


def named_values(values: Iterable[str] | None, option: str, form: str) -> dict[str, str]:
    """`NAME=VALUE` options by name."""
    result: dict[str, str] = {}
    for text in values or ():
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value:
            raise UsageError(f"{option} {text}: give it as {form}")
        if name in result:
            raise UsageError(f"{option} {name} is given twice")
        result[name] = value
    return result


def shapes_of(values: Iterable[str] | None) -> dict[str, tuple[int, ...]]:
    """`--shape` options as shapes by input name; `NAME=` alone would be a scalar and is refused."""
    shapes = {}
    for name, text in named_values(values, "--shape", "NAME=1,3,224,224").items():
        try:
            shape = tuple(int(extent) for extent in text.split(","))
        except ValueError:
            raise UsageError(f"--shape {name}={text}: extents must be integers") from None
        if any(extent < 1 for extent in shape):
            raise UsageError(f"--shape {name}={text}: extents must be 1 or more")
        shapes[name] = shape
    return shapes


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
    try:
        write_text(path, text)
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror or error}") from error
