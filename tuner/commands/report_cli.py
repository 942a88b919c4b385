"""`tune report`: options in, a page and values out."""

from __future__ import annotations

from typing import Annotated

import typer

from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import write_file, write_json
from tunefarm.tuner.commands.database_cli import open_database
from tunefarm.tuner.commands.options import DbOption, JsonOption, UsageError


def report(
    html: Annotated[
        str | None, typer.Option("--html", "--output", "-o", metavar="FILE", help="Output file.")
    ] = None,
    db: DbOption = None,
    job: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Only this job: its id, the start of it, or last."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="JOB", help="Compare --job with this job.")
    ] = None,
    builds: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B", help="Compare two builds, each by the start of its artifact's SHA-256."
        ),
    ] = None,
    bench: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Add latencies by size from tune bench --json (repeatable)."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Add the code of all kernels, which takes longer.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Write a page on the models, jobs and kernels of a database: one file that needs no network.

    With --against the page begins with what changed between two jobs, with --builds between two
    builds (tune db builds lists them).
    """
    if html is None and json is None:
        raise UsageError("no output file is given: --html FILE (or --json FILE for the values)")
    if against is not None and job is None:
        raise UsageError("--against needs a job to compare: --job JOB (or --job last)")
    if against is not None and builds is not None:
        raise UsageError("--against compares jobs and --builds builds: give one of them")
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
