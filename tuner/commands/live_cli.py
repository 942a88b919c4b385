"""The commands about jobs that run, or ran, and the report of them: options in, one call into what
works, results out.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated

import typer

from tunefarm.configs.errors import DatabaseError
from tunefarm.tuner.commands.command_files import DEFAULT_DATABASE, check_files
from tunefarm.tuner.commands.command_line import show, write_file, write_json
from tunefarm.tuner.commands.completion import job_values
from tunefarm.tuner.commands.database_cli import open_database
from tunefarm.tuner.commands.options import DbOption, JsonOption, UsageError, argument, option
from tunefarm.tuner.commands.typed_command import resumed
from tunefarm.tuner.commands.usage import Command
from tunefarm.tuner.reports.terminal import console

JobArgument = Annotated[
    str, argument("JOB", "Job id, the start of it, or last: the newest.", autocompletion=job_values)
]


def add_live_commands(app: typer.Typer) -> None:
    """Add the commands to those of `tune`."""
    for command in (status, watch, stop, resume):
        app.command(cls=Command)(command)


def status(db: DbOption = None, json: JsonOption = None) -> None:
    """List all jobs: state, best latency so far, trials and remaining time."""
    check_files(writes=[json], databases=[db])
    from tunefarm.db import queries
    from tunefarm.tuner.commands.job_status import status_table, status_to_json

    with open_database(db) as store:
        jobs = queries.jobs(store)
        show(json, status_to_json(jobs), status_table(jobs))


def watch(
    job: Annotated[
        str | None,
        argument(
            "JOB",
            "Job id, the start of it, or last: the newest [default: the running job].",
            autocompletion=job_values,
        ),
    ] = None,
    db: DbOption = None,
) -> None:
    """Follow a running job from another terminal or machine; the job is not affected."""
    with open_database(db) as store:
        from tunefarm.tuner.commands.job_status import Watch, end_parts
        from tunefarm.tuner.reports.progress import make_progress

        table, line = end_parts(Watch(store, make_progress(), job).follow())
        console().print(table)
        print(line)


def stop(
    job: JobArgument,
    db: DbOption = None,
    wait: Annotated[
        float, option("--wait SECONDS", "How long to wait for its end.", min=0.0)
    ] = 60.0,
) -> None:
    """Stop a running job as Ctrl-C does, on any machine; everything that it measured is kept."""
    from tunefarm.tuner.commands.job_status import stop_job

    with open_database(db, write=True) as store:
        print(stop_job(store, job, wait, "" if db is None else db))


def resume(
    context: typer.Context,
    job: JobArgument,
    db: DbOption = None,
    minutes: Annotated[
        float | None,
        option("--minutes M", "Minutes from now [default: the job's remaining minutes].", min=0.0),
    ] = None,
    trials: Annotated[
        int | None,
        option(
            "--trials N",
            "Maximum number of trials, earlier runs included [default: the job's own].",
            min=1,
        ),
    ] = None,
) -> None:
    """Resume a job that was interrupted or lost, with the arguments that it was started with.

    It keeps its remaining minutes; --minutes replaces them. Both options also extend a finished
    job.
    """
    from tunefarm.tuner.commands.job_status import resuming

    database = DEFAULT_DATABASE if db is None else db
    if "://" not in database:
        database = os.path.abspath(database)
    with open_database(database) as store:
        command, arguments = resuming(store, job, database, minutes=minutes, trials=trials)
    try:
        os.chdir(command.folder)
    except OSError as error:
        raise DatabaseError(
            f"the job was started in {command.folder}: {error.strerror or error}",
            hint="start it again: tune MODEL continues from what is recorded",
        ) from error
    print(f"in {command.folder}: tune {' '.join(_shown(arguments))}", file=sys.stderr)
    resumed(context, arguments, database)


def _shown(arguments: list[str]) -> list[str]:
    """The arguments without a database's URL, which may have a password."""

    return ["…" if "://" in argument else shlex.quote(argument) for argument in arguments]


def report(
    html: Annotated[str | None, option("--html --output -o FILE", "Output file.")] = None,
    db: DbOption = None,
    job: Annotated[
        str | None,
        option(
            "--job JOB",
            "Only this job: its id, the start of it, or last.",
            autocompletion=job_values,
        ),
    ] = None,
    full: Annotated[
        bool, option("--full", "Leave nothing out of a large database, which takes longer.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Write a page on the models, jobs and kernels of a database: one file without network."""
    if html is None and json is None:
        raise UsageError("no output file is given: --html FILE (or --json FILE for the values)")
    check_files(writes=[html, json], databases=[db])
    from tunefarm.tuner.pages.contents import PageOptions
    from tunefarm.tuner.pages.page import html_of, json_of, parts_of

    with open_database(db) as store:
        parts = parts_of(store, PageOptions(job, full))
    write_json(json, json_of(parts) if json is not None else None)
    if html is not None:
        write_file(html, html_of(parts))
        if json != "-":
            print(html)
