"""The commands of `tune db`: options in, one call into the module that works, results out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.tuner.commands.command_files import DEFAULT_DATABASE, check_files
from tunefarm.tuner.commands.command_line import show
from tunefarm.tuner.commands.options import DbOption, JsonOption, UsageError
from tunefarm.tuner.commands.usage import Workflow
from tunefarm.tuner.reports.terminal import console

if TYPE_CHECKING:
    from tunefarm.db.export import Added
    from tunefarm.db.store import Store

database = typer.Typer(
    cls=Workflow, rich_markup_mode=None, no_args_is_help=True, help="Look after the records."
)


@database.command("list")
def db_list(db: DbOption = None, json: JsonOption = None) -> None:
    """List what is recorded: kernels with their targets and thread counts, plans, open jobs."""
    check_files(writes=[json], databases=[db])
    from tunefarm.tuner.commands.database_commands import (
        job_lines,
        list_table,
        list_to_json,
        listed,
    )
    from tunefarm.tuner.commands.plan_records import plan_list

    with open_database(db) as store:
        tasks, lines = listed(store), [*plan_list(store), *job_lines(store)]
        show(json, list_to_json(tasks), list_table(tasks), *lines)


@database.command("show")
def db_show(
    workload: Annotated[
        str, typer.Argument(metavar="KEY", help="Workload or plan, or the start of it.")
    ],
    db: DbOption = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Trials to show.")] = 10,
) -> None:
    """Show one kernel, its best trials and the schedule that a build would use; or a plan."""
    from tunefarm.tuner.commands.database_commands import show_lines
    from tunefarm.tuner.commands.plan_records import shown_plans

    with open_database(db) as store:
        print("\n".join(shown_plans(store, workload) or show_lines(store, workload, top)))


@database.command("builds")
def db_builds(
    db: DbOption = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest so many.")] = 50,
) -> None:
    """List the models that were built from the records."""
    from tunefarm.tuner.commands.database_commands import builds_table

    with open_database(db) as store:
        console().print(builds_table(store, limit))


@database.command("export")
def db_export(
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="A new file of JSON lines.")
    ] = None,
    optuna: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A new SQLite file of studies, for optuna-dashboard."),
    ] = None,
    db: DbOption = None,
) -> None:
    """Write all records to a new file: JSON lines, or studies of Optuna."""
    if output is None and optuna is None:
        raise UsageError("say where the records go: --output FILE or --optuna FILE")
    check_files(writes=[output, optuna], databases=[db])
    with open_database(db) as store:
        if output is not None:
            from tunefarm.db.export import export_records

            print(f"{export_records(store, Path(output))} trials written to {output}")
        if optuna is not None:
            from tunefarm.tuner.records.optuna_study import export_studies

            studies, trials = export_studies(store, Path(optuna))
            print(f"{trials} trials of {studies} kernels written to {optuna}")
            print(f"next: {shlex.join(['optuna-dashboard', f'sqlite:///{optuna}'])}")


@database.command("import")
def db_import(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Made by tune db export.")],
    db: DbOption = None,
) -> None:
    """Add the records of a file of exports that are not in the database yet."""
    from tunefarm.db.export import RecordsFile

    with (
        RecordsFile(Path(file)) as records,
        open_database(db, write=True, create=True) as store,
    ):
        _take(lambda added: records.add_to(store, added))


@database.command("merge")
def db_merge(
    other: Annotated[str, typer.Argument(metavar="DATABASE", help="Where records come from.")],
    db: DbOption = None,
) -> None:
    """Add the records of another database that are not in this one yet."""
    from tunefarm.db.export import merge_records

    with open_database(other) as source, open_database(db, write=True, create=True) as store:
        _take(lambda added: merge_records(store, source, added))


def _take(take: Callable[[Added], Added]) -> None:
    """Add records, and say how many there were, also where that was broken off."""
    from tunefarm.db.export import Added

    added = Added()
    try:
        take(added)
    except BaseException:
        if added:
            text = f"{added}; the same command takes the rest"
            print(f"note: broken off after {text}", file=sys.stderr)
        raise
    print(added)


@database.command("prune")
def db_prune(
    db: DbOption = None,
    keep: Annotated[
        int, typer.Option(min=1, metavar="N", help="Trials of each kernel that stay, about.")
    ] = 256,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Delete trials that nothing applies and that teach a search little, and say which."""
    from tunefarm.tuner.records.prune import plan_pruning, prune

    with open_database(db, write=not dry_run) as store:
        tasks = plan_pruning(store, keep)
        for task in tasks:
            name = f"{task.workload_name} {task.key.workload[:8]}"
            line = f"{name}: {len(task.dropped)} of {task.trials} trials go"
            if task.references:
                line += f"; {task.references} stay because others were measured against them"
            print(line)
        total = sum(len(task.dropped) for task in tasks)
        if dry_run:
            print(f"{total} trials would go; nothing was changed")
        else:
            print(f"{prune(store, tasks)} trials deleted")


@database.command("check")
def db_check(
    db: DbOption = None,
    replay: Annotated[
        int, typer.Option(min=0, metavar="N", help="Records to rebuild and, if possible, run.")
    ] = 16,
) -> None:
    """Check the database and replay some records; exits with 1 if something is wrong."""
    from tunefarm.tuner.commands.database_commands import check_lines

    with open_database(db, check_rows=False) as store:
        lines, sound = check_lines(store, replay)
    print("\n".join(lines))
    if not sound:
        raise typer.Exit(1)


@database.command("salvage")
def db_salvage(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A damaged database; only read.")],
    output: Annotated[str, typer.Option(metavar="NEW", help="Where the new database goes.")],
) -> None:
    """Write what is intact of a damaged database to a new one, and say what is lost."""
    check_files(writes=[output], databases=[file])
    from tunefarm.db.salvage import salvage
    from tunefarm.tuner.commands.database_commands import salvage_lines

    result = salvage(Path(file), Path(output))
    print("\n".join(salvage_lines(result)))
    print(f"next: {shlex.join(['tune', 'db', 'check', '--db', output])}")


@database.command("upgrade")
def db_upgrade(db: DbOption = None) -> None:
    """Bring an older database to this version's schema; a backup is made first."""
    from tunefarm.db import schema

    with open_database(db, write=True) as store:
        if store.upgraded_from is None:
            print(f"{store.name} has schema {schema.REVISION} already")
        else:
            store.compact()  # rows that were written anew leave room behind
            print(store.upgrade_note)


def open_database(
    db: str | None, *, write: bool = False, create: bool = False, check_rows: bool = True
) -> Store:
    """A database, `tuning.db` if none is named, open for reading unless it is to be written."""
    from tunefarm.db.store import Store

    location = DEFAULT_DATABASE if db is None else db
    store = Store.open(location, create=create, read_only=not write, check_rows=check_rows)
    if store.read_only and store.upgrade_note:
        print(f"note: {store.upgrade_note}", file=sys.stderr)
    return store
