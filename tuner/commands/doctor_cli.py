"""`tune doctor`: options in, findings out as they come."""

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
            min=0.0, max=3600.0, metavar="S", help="Seconds to measure noise for; 0: leave it out."
        ),
    ] = 60.0,
    json: JsonOption = None,
) -> None:
    """Say what this machine, its libraries and files are to tuning, and what to mend.

    Each line begins with ok, warning or problem, and says below what to do about it. Exits with 1
    if there is a problem.
    """
    check_files(writes=[json])
    from tunefarm.tuner.doctor.checkup import checkup, report_json
    from tunefarm.tuner.doctor.findings import Finding, Grade, Question, summary, worst

    told = f", and its noise for {seconds:g} s" if seconds else ""
    print(f"looking at this machine{told}", file=sys.stderr)
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
