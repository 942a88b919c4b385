"""The commands of `tune db`: options in, one call into the module that works, results out."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.tuner.commands.command_files import DEFAULT_DATABASE, check_files
from tunefarm.tuner.commands.command_line import prepare, show
from tunefarm.tuner.commands.options import (
    DbOption,
    JsonOption,
    LayersOption,
    ModelOption,
    OutputOption,
    TargetsOption,
    UsageError,
    argument,
    model_command,
    model_shapes,
    option,
    settings_of,
    target_names,
)
from tunefarm.tuner.commands.usage import Command, Workflow
from tunefarm.tuner.commands.verbosity import note

if TYPE_CHECKING:
    from tunefarm.db.export import Added
    from tunefarm.db.store import Store

KeyOption = Annotated[
    str | None, option("--key FILE", "The secret key that packs are signed and verified with.")
]
database = typer.Typer(
    cls=Workflow,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Inspect and maintain the tuning log, a database of records.",
)


@database.command("list")
def db_list(db: DbOption = None, json: JsonOption = None) -> None:
    """List the recorded kernels and unfinished jobs."""
    check_files(writes=[json], databases=[db])
    from tunefarm.tuner.commands.database_commands import (
        job_lines,
        list_table,
        list_to_json,
        listed,
    )

    with open_database(db) as store:
        tasks, lines = listed(store), job_lines(store)
        show(json, list_to_json(tasks), list_table(tasks), *lines)


@database.command("show")
def db_show(
    workload: Annotated[str, argument("KEY", "Key of a workload, or the start of it.")],
    db: DbOption = None,
    top: Annotated[int, option("--top N", "Trials to show.", min=1)] = 10,
    json: JsonOption = None,
) -> None:
    """Show one kernel, its best trials and the schedule that a build uses."""
    check_files(writes=[json], databases=[db])
    from tunefarm.tuner.commands.database_commands import show_lines, show_to_json

    with open_database(db) as store:
        lines = show_lines(store, workload, top)
        show(json, show_to_json(store, workload, top), "\n".join(lines))


@database.command("why", cls=Command)
@model_command
def db_why(
    context: typer.Context,
    model: ModelOption,
    db: DbOption = None,
    layers: LayersOption = None,
    targets: TargetsOption = None,
    json: JsonOption = None,
) -> None:
    """Explain a build kernel by kernel: the record it uses, those it does not use, and why."""
    given = context.params
    shapes, settings, config = model_shapes(given), settings_of(given), given["config"]
    prepare(settings, config, model, [json])
    from tunefarm.tuner.building.explain import explain_model
    from tunefarm.tuner.building.request import BuildRequest
    from tunefarm.tuner.commands.typed_command import next_commands

    commands = next_commands(model, settings, config, shapes, db, given["functions"] or ())
    found = explain_model(BuildRequest(model, "", settings, shapes), commands, note)
    lines = [line for item in found for line in item.lines]
    show(json, [item.to_json() for item in found], "\n".join(lines))


@database.command("builds")
def db_builds(
    db: DbOption = None,
    limit: Annotated[int, option("--limit N", "Number of builds, the newest first.", min=1)] = 50,
    json: JsonOption = None,
) -> None:
    """List the models that were built from this database."""
    check_files(writes=[json], databases=[db])
    from tunefarm.tuner.commands.database_commands import builds_table, builds_to_json

    with open_database(db) as store:
        show(json, builds_to_json(store, limit), builds_table(store, limit))


@database.command("export")
def db_export(output: OutputOption = None, db: DbOption = None) -> None:
    """Write all records to a new file of JSON lines."""
    if output is None:
        raise UsageError("no output file is given: --output FILE")
    check_files(writes=[output], databases=[db])
    from tunefarm.db.export import export_records

    with open_database(db) as store:
        print(f"{export_records(store, Path(output))} trials written to {output}")


@database.command("import")
def db_import(
    file: Annotated[str, argument("FILE", "A file of tune db export.")], db: DbOption = None
) -> None:
    """Add the records of an exported file; those already in the database are skipped."""
    from tunefarm.db.export import RecordsFile

    with RecordsFile(Path(file)) as records, open_database(db, write=True, create=True) as store:
        _take(lambda added: records.add_to(store, added))


@database.command("merge")
def db_merge(
    other: Annotated[str, argument("DATABASE", "The database to read.")], db: DbOption = None
) -> None:
    """Add the records of another database; those already in this one are skipped."""
    from tunefarm.db.export import merge_records

    with open_database(other) as source, open_database(db, write=True, create=True) as store:
        _take(lambda added: merge_records(store, source, added))


def _take(take: Callable[[Added], Added]) -> None:
    """Add records and print how many, also when interrupted."""
    from tunefarm.db.export import Added

    added = Added()
    try:
        take(added)
    except BaseException:
        if added:
            note(f"interrupted after {added}; the same command adds the rest")
        raise
    print(added)


@database.command("pack")
def db_pack(
    models: Annotated[
        list[str] | None, argument("[MODEL]...", "Models by name or file [default: all].")
    ] = None,
    output: Annotated[str, option("--output -o FILE", "The new pack.")] = "",
    targets: Annotated[
        str | None, option("--targets A,B,...", "Targets by name or key [default: all].")
    ] = None,
    key: KeyOption = None,
    db: DbOption = None,
) -> None:
    """Write the records and plans of some models to one file that tune db add verifies."""
    if not output:
        raise UsageError("no output file is given: --output FILE.pack")
    check_files(writes=[output], reads=[key] if key else [], databases=[db])
    from tunefarm.tuner.records.packs import read_key, write_pack

    secret, wanted = read_key(key), target_names(targets) or ()
    with open_database(db) as store:
        print(f"{write_pack(store, Path(output), models or (), wanted, secret)} -> {output}")
    print(f"next: {shlex.join(['tune', 'db', 'add', output])}")


@database.command("add")
def db_add(
    source: Annotated[str, argument("FILE|FOLDER", "Packs, exports or databases.")],
    key: KeyOption = None,
    db: DbOption = None,
) -> None:
    """Add a pack, or every file of records in a folder; tune db rollback undoes it."""
    from tunefarm.tuner.records.packs import add_files, files_to_add, is_signed, read_key

    secret, path = read_key(key), Path(source)
    files = files_to_add(path)
    check_files(writes=[], reads=[key] if key else [], databases=[db])
    with open_database(db, write=True, create=True) as store:
        _take(lambda added: add_files(store, path, key=secret, added=added))
    if secret is None and any(map(is_signed, files)):
        note("signatures were not verified: --key FILE does it")
    print("they are nominees: tune verify MODEL --quick measures which ones apply on this CPU")


@database.command("prune")
def db_prune(
    db: DbOption = None,
    keep: Annotated[
        int, option("--keep N", "How many trials to keep of each kernel, about.", min=1)
    ] = 256,
    dry_run: Annotated[bool, option("--dry-run", "Only print what would be deleted.")] = False,
) -> None:
    """Delete trials that no build uses and that help a search little."""
    from tunefarm.tuner.records.prune import plan_pruning, prune

    with open_database(db, write=not dry_run) as store:
        tasks = plan_pruning(store, keep)
        for task in tasks:
            name = f"{task.workload_name} {task.key.workload[:8]}"
            line = f"{name}: delete {len(task.dropped)} of {task.trials} trials"
            if task.references:
                line += f"; {task.references} are kept because others were measured against them"
            print(line)
        total = sum(len(task.dropped) for task in tasks)
        if dry_run:
            print(f"{total} trials would be deleted; nothing was changed")
        else:
            print(f"{prune(store, tasks)} trials deleted")


@database.command("check")
def db_check(
    db: DbOption = None,
    replay: Annotated[
        int, option("--replay N", "Number of records to rebuild and, if possible, run.", min=0)
    ] = 16,
) -> None:
    """Check the database and replay some records; exit with 1 if something is wrong."""
    from tunefarm.tuner.commands.database_commands import check_lines

    with open_database(db, check_rows=False) as store:
        lines, sound = check_lines(store, replay)
    print("\n".join(lines))
    if not sound:
        raise typer.Exit(1)


@database.command("salvage")
def db_salvage(
    file: Annotated[str, argument("FILE", "A damaged database; it is not changed.")],
    output: Annotated[str, option("--output -o FILE", "The new database.")],
) -> None:
    """Copy the intact rows of a damaged database to a new one, and print what is lost."""
    check_files(writes=[output], databases=[file])
    from tunefarm.db.salvage import salvage
    from tunefarm.tuner.commands.database_commands import salvage_lines

    result = salvage(Path(file), Path(output))
    print("\n".join(salvage_lines(result)))
    print(f"next: {shlex.join(['tune', 'db', 'check', '--db', output])}")


@database.command("rollback")
def db_rollback(db: DbOption = None) -> None:
    """Undo the last import, merge or added pack: delete what it brought."""
    from tunefarm.db.additions import roll_back

    with open_database(db, write=True) as store:
        undone = roll_back(store)
        named = {"bests": "confirmed schedules"}
        rows = ", ".join(
            f"{count} {named.get(table, table)}" for table, count in undone.rows.items()
        )
        print(f"{undone.addition} is undone: {rows or 'nothing'} deleted")


@database.command("upgrade")
def db_upgrade(db: DbOption = None) -> None:
    """Upgrade an older database to this version's schema, after a backup."""
    from tunefarm.db import schema

    with open_database(db, write=True) as store:
        if store.upgraded_from is None:
            print(f"{store.name} already has schema {schema.REVISION}")
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
        note(store.upgrade_note)
    return store
