"""`tune doctor`: options in, findings out as they are made."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import write_json
from tunefarm.tuner.commands.options import ConfigOption, DbOption, JsonOption


def doctor(
    db: DbOption = None,
    config: ConfigOption = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.0, max=3600.0, metavar="S", help="Seconds of measuring noise; 0: do not."
        ),
    ] = 60.0,
    json: JsonOption = None,
) -> None:
    """Check that this machine, its libraries and your files are ready for tuning, and say how to
    fix what is not.

    Each finding begins with ok, warning or problem; the lines below it say how to fix it. Exits
    with 1 if there is a problem.
    """
    check_files(writes=[json])
    from tunefarm.tuner.doctor.checkup import checkup, report_json
    from tunefarm.tuner.doctor.findings import Finding, Grade, Question, summary, worst

    noise = f", measuring noise for {seconds:g} s" if seconds else ""
    print(f"checking this machine{noise}", file=sys.stderr)
    findings: list[Finding] = []
    for finding in checkup(Question(config, db, seconds)):
        findings.append(finding)
        if json != "-":
            print("\n".join(finding.lines()), flush=True)
    write_json(json, report_json(findings))
    if json != "-":
        print(summary(findings))
    if worst(findings) is Grade.PROBLEM:
        raise typer.Exit(1)
