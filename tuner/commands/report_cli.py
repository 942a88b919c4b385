"""`tune report`: options in, a page and values out."""

from __future__ import annotations

from typing import Annotated

import typer

from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import write_file, write_json
from tunefarm.tuner.commands.database_cli import open_database
from tunefarm.tuner.commands.options import DbOption, JsonOption, UsageError


def report(
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Where the page goes.")] = None,
    db: DbOption = None,
    job: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Only this one: its id, or the start of it; or last."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="JOB", help="What --job changed since this one.")
    ] = None,
    builds: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B", help="What changed from one build (its artefact's beginning) to another."
        ),
    ] = None,
    bench: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="What tune bench --json wrote: latencies by size."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The code of all kernels, however long it takes.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Write a page about models, jobs and kernels of a database: one file that needs no network.

    With --against the page begins with what changed between two jobs, with --builds between two
    builds, which `tune db builds` lists by the
    beginnings of their artefacts.
    """
    if html is None and json is None:
        raise UsageError("say where the page goes: --html FILE (or --json FILE for the values)")
    if against is not None and job is None:
        raise UsageError("--against compares with a job: say which, --job JOB (or --job last)")
    if against is not None and builds is not None:
        raise UsageError("--against compares jobs and --builds builds: one page has one of them")
    check_files(reads=bench or [], writes=[html, json], databases=[db])
    from tunefarm.tuner.pages.contents import PageOptions
    from tunefarm.tuner.pages.page import html_of, json_of, parts_of
    from tunefarm.tuner.reports.size_curves import read_curves

    curves = [read_curves(path) for path in bench or []]
    options = PageOptions(job, against, builds, curves, full)
    with open_database(db) as store:
        parts = parts_of(store, options)
    write_json(json, json_of(parts) if json is not None else None)
    if html is not None:
        write_file(html, html_of(parts))
        if json != "-":
            print(html)
