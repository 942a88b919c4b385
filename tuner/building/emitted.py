"""What a build came to."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from tuner.building.build_report import BuildReport
from tuner.building.forms import ARTEFACT
from tuner.building.kept_artefacts import KeptArtefact
from tuner.reports.report import format_share


@dataclass(frozen=True, slots=True)
class Emitted:
    """What was written where, how each kernel was built, and the command to type next.

    `model_hash` and `digest` name the model and the artefact, `kept` is the artefact in the cache
    if it is kept; other forms have none of these.
    """

    form: str
    output: str
    files: tuple[str, ...]
    report: BuildReport
    next_command: str
    model_hash: str = ""
    digest: str = ""
    kept: KeptArtefact | None = None

    def to_json(self) -> dict[str, Any]:
        """What users see of it as JSON values."""
        named = {"output": self.output, "emit": self.form, "files": list(self.files)}
        return {**named, **self.report.to_json()}

    def lines(self) -> list[str]:
        """What to tell the user below the table of kernels."""
        share = format_share(self.report.tuned_share)
        return [
            f"{', '.join(self.files)}: {share} of the estimated time runs tuned schedules",
            f"next: {self.next_command}",
        ]


def emitted_artefact(
    output: str, report: BuildReport, model_hash: str, digest: str, kept: KeptArtefact | None
) -> Emitted:
    """An artefact that is at `output`."""
    command = f"tune run {shlex.quote(output)} --repeat 20"
    return Emitted(ARTEFACT, output, (output,), report, command, model_hash, digest, kept)
