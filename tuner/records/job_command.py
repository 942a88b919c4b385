"""The command line of a job, as it is kept with the job's settings: what `tune resume` types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a command that is only typed wrong needs no database
    from tunefarm.db.records import JobRecord

_KEY = "command"
_FORMER = {"--trace", "--metrics", "--plan"}
"""Options that former versions had: a job of theirs goes on without."""


@dataclass(frozen=True, slots=True)
class JobCommand:
    """What was typed behind `tune`, in which folder, and when, in seconds since the epoch.

    Files are absolute paths, and a database of a server is left out, whose URL may have a password.
    `minutes` are those of the whole command, of which a job may be one of several; None: no limit.
    """

    arguments: tuple[str, ...]
    folder: str
    began: float
    minutes: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for the job's settings."""
        return {
            "arguments": list(self.arguments),
            "folder": self.folder,
            "began": self.began,
            "minutes": self.minutes,
        }

    def kept_in(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a job, as JSON values, with the command among them."""
        return {**settings, _KEY: self.to_json()}

    @staticmethod
    def of(job: JobRecord) -> JobCommand | None:
        """The command of a job; None of one that was not begun by a command, or by an older
        version."""
        settings = job.settings if isinstance(job.settings, Mapping) else {}
        found = settings.get(_KEY)
        if not isinstance(found, Mapping):
            return None
        arguments, minutes = found.get("arguments"), found.get("minutes")
        if not isinstance(arguments, list) or not all(isinstance(one, str) for one in arguments):
            return None
        return JobCommand(
            tuple(arguments),
            str(found.get("folder", "")),
            _number(found.get("began"), job.started),
            _number(minutes, 0.0) if minutes is not None else None,
        )

    def minutes_left(self, job: JobRecord) -> float | None:
        """Of the command's minutes those that were not used when the job ended; None: no limit."""
        if self.minutes is None:
            return None
        return max(0.0, self.minutes - (ended(job) - self.began) / 60.0)

    def again(
        self, *, database: str, minutes: float | None = None, trials: int | None = None
    ) -> list[str]:
        """The arguments that go on with the job, with other limits where they are given."""
        changed = {"--db": database}
        if minutes is not None:
            changed["--minutes"] = f"{minutes:.6g}"
        if trials is not None:
            changed["--trials"] = str(trials)
        kept = without(self.arguments, _FORMER | changed.keys())
        return [*kept, *(word for pair in changed.items() for word in pair)]


def ended(job: JobRecord) -> float:
    """When the job ended, or was last heard of."""
    return job.updated if job.finished is None else max(job.updated, job.finished)


def without(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """The arguments but these options, which have a value each."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in options:
            skip = True
        else:
            kept.append(argument)
    return kept


def _number(value: object, otherwise: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else otherwise  # type: ignore[arg-type]
