"""The commands of `tune jobs`: options in, one call into the module that works, results out."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.compiler.function_modules import load_modules
from tunefarm.configs.clock import steady_time
from tunefarm.configs.errors import DatabaseError, SettingsError
from tunefarm.configs.temporary_folders import make_folder
from tunefarm.tuner.commands.command_files import check_files, database_file
from tunefarm.tuner.commands.command_line import prepare, show, write_json
from tunefarm.tuner.commands.database_cli import open_database
from tunefarm.tuner.commands.options import (
    DbOption,
    JsonOption,
    UsageError,
    argument,
    option,
    parsed_tune,
    tune_options,
)
from tunefarm.tuner.commands.usage import Command, Workflow
from tunefarm.tuner.commands.verbosity import note
from tunefarm.tuner.interrupt import exit_code, signals_held

if TYPE_CHECKING:
    from tunefarm.db.queue import QueueEntry
    from tunefarm.db.store import Store
    from tunefarm.tuner.queues.entry_options import EntryOptions
    from tunefarm.tuner.queues.queue_runner import QueueRunner
    from tunefarm.tuner.queues.summary import QueueSummary

jobs = typer.Typer(
    cls=Workflow,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Tune a queue of models until a given time.",
)

_LONGEST_MINUTES = 60.0 * 24 * 366


# Long: one parameter for each option.
@jobs.command(
    "add", cls=Command, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def jobs_add(
    context: typer.Context,
    model: Annotated[
        list[str], option("--model FILE", "ONNX model, the same as MODEL (repeatable).")
    ],
    threads: Annotated[
        list[int] | None, option("--threads T", "Threads (repeatable: one entry for each).", min=1)
    ] = None,
    targets: Annotated[
        list[str] | None,
        option("--targets A,B,...", "CPUs of one job (repeatable: one entry for each)."),
    ] = None,
    weight: Annotated[
        float | None,
        option("--weight W", "Share of the time; others have 1.", min=0.001, max=1000.0),
    ] = None,
    minutes: Annotated[
        float | None,
        option("--minutes M", "Maximum minutes of each entry, all turns together.", min=0.1),
    ] = None,
    db: DbOption = None,
    json: JsonOption = None,
) -> None:
    """Add a job for each model, thread count and target. Takes the other options of tune as well.

    Models come first: tune jobs add A.onnx B.onnx --threads 4.
    """
    from tunefarm.tuner.queues.summary import summary_of

    check_files(writes=[json], databases=[db])
    counts: list[int | None] = [*threads] if threads else [None]
    cpus: list[str | None] = [*targets] if targets else [None]
    known: dict[str, int] = {}
    found = [
        _checked(name, count, target, context.args, weight, minutes, json, known)
        for name in model
        for count in counts
        for target in cpus
    ]
    url, _ = _location(db)
    with open_database(url, write=True, create=True) as store:
        from tunefarm.db.queue import add_entry, entries

        waiting = {item.arguments for item in entries(store) if item.state != "finished"}
        added = []
        for name, arguments, options in found:
            if arguments in waiting:
                note(f"{name} is already in the queue: not added again")
                continue
            entry = add_entry(store, name, arguments, os.getcwd(), options.to_json())
            added.append((summary_of(store, entry), options))
    write_json(json, [summary.to_json() for summary, _ in added])
    if json == "-":
        return
    for summary, options in added:
        print(f"{summary.id[:8]}  {summary.name}: {options.kernel_count} distinct kernels")
    command = ["tune", "jobs", "run", "--until", "07:00", *([] if db is None else ["--db", db])]
    print(f"next: {shlex.join(command)}")


def _checked(
    model: str,
    threads: int | None,
    targets: str | None,
    rest: Sequence[str],
    weight: float | None,
    minutes: float | None,
    json: str | None,
    known: dict[str, int],
) -> tuple[str, tuple[str, ...], EntryOptions]:
    """An entry's model, its arguments with absolute paths, checked as its job will check them, and
    the queue's options."""
    from tunefarm.tuner.commands.typed_command import typed_command

    typed = ["--model", os.path.abspath(model)]
    typed += [] if threads is None else ["--threads", str(threads)]
    typed += [] if targets is None else ["--targets", targets]
    tune = parsed_tune([*typed, *rest])
    if tune.params["model"] != typed[1]:
        raise UsageError("--model is given among other options: put models first")

    load_modules(tune.params["functions"] or ())
    given = {**tune.params, "minutes": tune.params["minutes"] if minutes is None else minutes}
    options = tune_options(given)
    prepare(options.settings, given["config"], typed[1], [json], options.precision.files())
    from tunefarm.tuner.queues.entry_options import EntryOptions
    from tunefarm.tuner.tune_model import check_model

    kernels = check_model(typed[1], options.settings, options.shapes, known)
    arguments = typed_command(tune, options.settings, time.monotonic()).arguments
    if "--db" in arguments[-2:]:  # whatever database they are in then
        arguments = arguments[:-2]
    return Path(model).name, arguments, EntryOptions.of(options.settings, kernels, weight)


@jobs.command("list")
def jobs_list(db: DbOption = None, json: JsonOption = None) -> None:
    """List the queue: order, state, time spent and gain of each entry, and errors."""
    check_files(writes=[json], databases=[db])
    from tunefarm.db.queue import entries
    from tunefarm.tuner.queues.summary import entries_table, summary_of

    url, _ = _location(db)
    with open_database(url) as store:
        found = [summary_of(store, entry) for entry in entries(store)]
    if not found:
        show(json, [], f"the queue of {url} is empty; next: tune jobs add MODEL")
        return
    show(json, [summary.to_json() for summary in found], entries_table(found))


@jobs.command("remove")
def jobs_remove(
    ids: Annotated[
        list[str] | None, argument("[ID]...", "Entries, by id or the start of it.")
    ] = None,
    finished: Annotated[bool, option("--finished", "All finished entries.")] = False,
    db: DbOption = None,
) -> None:
    """Remove entries from the queue. What their jobs have measured is kept."""
    if bool(ids) == finished:
        raise UsageError("no entries are given: type ids of tune jobs list, or --finished")
    from tunefarm.db.queue import entries, remove_entry
    from tunefarm.tuner.queues.entry_options import name_of, options_of

    url, _ = _location(db)
    with open_database(url, write=True) as store:
        known = entries(store)
        chosen = [item for item in known if finished and item.state == "finished"]
        chosen += [_entry_with(known, id) for id in ids or ()]
        for item in {item.id: item for item in chosen}.values():
            remove_entry(store, item.id)
            with suppress(DatabaseError):
                print(f"removed {item.id[:8]}  {name_of(item, options_of(item))}")
    if not chosen:
        print("no entry is finished")


def _entry_with(known: Sequence[QueueEntry], start: str) -> QueueEntry:
    """The one entry whose id begins so."""
    found = [item for item in known if start and item.id.startswith(start)]
    if len(found) == 1:
        return found[0]
    problem = "several entries begin with it" if found else "no entry begins with it"
    raise DatabaseError(f"{start!r}: {problem}", hint="tune jobs list shows all")


@jobs.command("run")
def jobs_run(
    until: Annotated[
        str | None,
        option("--until TIME", "When to end: 07:00 (the next one), or 2026-01-31T07:00."),
    ] = None,
    minutes: Annotated[
        float | None,
        option("--minutes M", "How many minutes to run.", min=0.1, max=_LONGEST_MINUTES),
    ] = None,
    db: DbOption = None,
    json: JsonOption = None,
) -> None:
    """Run the queue; exit with 0 if all is finished, 1 if some failed, 3 if some still wait."""
    if until is not None and minutes is not None:
        raise UsageError("--until and --minutes exclude each other: give one of them")
    check_files(writes=[json], databases=[db])
    now = steady_time()
    deadline = None if minutes is None else now + 60.0 * minutes
    if until is not None:
        from tunefarm.tuner.queues.division import moment_of

        deadline = moment_of(until, now)
    with signals_held():  # libraries start threads
        from tunefarm.db.queue import entries
        from tunefarm.tuner.queues.queue_runner import QueueRunner
        from tunefarm.tuner.queues.summary import entries_table, session_lines
        from tunefarm.tuner.reports.progress import make_progress

    url, database = _location(db)
    with open_database(url, write=True) as store:
        if not entries(store):
            raise DatabaseError(f"the queue of {store.name} is empty", hint="tune jobs add MODEL")
        folder = make_folder("jobs")
        runner = QueueRunner(store, database, deadline, make_progress(), folder, began=now)
        runner.run()
        summary = _summary(store, runner)
    show(json, summary.to_json(), entries_table(summary.entries), "\n".join(session_lines(summary)))
    if store.lost and not runner.interrupted:
        raise DatabaseError(store.lost)
    raise typer.Exit(summary.status)


def _summary(store: Store, runner: QueueRunner) -> QueueSummary:
    from tunefarm.db.queue import entries
    from tunefarm.tuner.queues.summary import QueueSummary, status_of, summary_of

    found = tuple(summary_of(store, entry) for entry in entries(store))
    status = exit_code() if runner.interrupted else status_of(found)
    return QueueSummary(
        store.name, runner.began, steady_time(), runner.deadline, status, runner.interrupted, found
    )


def _location(db: str | None) -> tuple[str, str | None]:
    """The database, and its name for processes in other folders: None if they know it from the
    environment, which may hold a password."""
    from tunefarm.configs.settings import load_settings

    url = load_settings(None, {"database.url": db}).database.url
    file = database_file(url)
    if url == ":memory:" or (file is None and url.startswith("sqlite")):
        raise SettingsError("a queue in memory would be lost at once", hint="name a file")
    if file is not None:
        return url, os.path.abspath(file)
    return url, None if db is None else url
