"""What a job came to: as values, as JSON, and in a few lines for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tuner.building.report import BuildReport
from tuner.confirm.latency import ModelLatency
from tuner.reports.report import TaskStatus, format_duration, task_to_json
from tuner.search.budget import End
from tuner.search.session import Overhead


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What a job did. `latency` and `build` are None when it was interrupted."""

    model: str
    database: str
    job: str
    end: End
    measured: int  # results of this run
    seconds: float
    tasks: tuple[TaskStatus, ...]
    latency: ModelLatency | None
    build: BuildReport | None
    overhead: Overhead = field(default_factory=Overhead)  # of the search itself

    @property
    def interrupted(self) -> bool:
        return self.end is End.INTERRUPTED

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "model": self.model,
            "database": self.database,
            "job": self.job,
            "end": self.end.value,
            "measured": self.measured,
            "seconds": self.seconds,
            "overhead_seconds": asdict(self.overhead),
            "tasks": [task_to_json(task) for task in self.tasks],
            "latency": None if self.latency is None else asdict(self.latency),
            "build": None if self.build is None else self.build.to_json(),
        }


def summary_lines(result: TuneResult, command: str) -> list[str]:
    """What a job did and what to do next, for people."""
    count = "1 measurement" if result.measured == 1 else f"{result.measured} measurements"
    lines = [
        f"{count} in {format_duration(result.seconds)}: {result.end}; "
        f"the search itself took {100 * result.overhead.total / result.seconds:.1f} % of that"
    ]
    latency = result.latency
    if latency is not None:
        lines.append(
            f"whole model: {1e3 * latency.untuned:.3f} ms untuned, {1e3 * latency.tuned:.3f} ms "
            f"tuned: {1 / latency.ratio:.2f}x as fast "
            f"(95 % sure: {1 / latency.high:.2f}x to {1 / latency.low:.2f}x)"
        )
        if latency.is_slower and latency.former is not None:
            lines.append(
                f"with the former schedules it takes {1e3 * latency.former:.3f} ms: they stay"
            )
    lines.append(f"next: {command}")
    return lines
