"""A campaign: attacks take turns until the time is over; findings, and counts of the rest."""

from __future__ import annotations

import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.attack import Attack, Outcome


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that broke, and how to see it again."""

    attack: str
    seed: int
    outcome: Outcome
    repro: str

    def __str__(self) -> str:
        lines = [
            f"{self.attack}: {self.outcome.label}",
            f"  again: python -m tests.attack {self.attack} --seed {self.seed} --attempts 1",
            *(f"  {line}" for line in self.outcome.detail.splitlines()),
        ]
        if self.repro:
            lines += ["  minimised:", *(f"    {line}" for line in self.repro.splitlines())]
        return "\n".join(lines)


@dataclass(slots=True)
class Tally:
    """What one attack's attempts came to; `seconds` is the time they took."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def attempts(self) -> int:
        """Of them all."""
        return self.counts.total()


def run_campaign(
    attacks: Sequence[Attack],
    *,
    seed: int,
    seconds: float,
    attempts: int | None = None,
    report: Callable[[Finding], None],
    progress: Callable[[dict[str, Tally]], None] = lambda _: None,
) -> dict[str, Tally]:
    """Attack in turns, each by its share, for `seconds` or until each has made its `attempts`.

    Attempt number k has the seed `seed` + k. At least one attempt of each is made. `report` is told
    of each finding, `progress` of what there is after each attempt.
    """
    tallies = {attack.name: Tally() for attack in attacks}
    deadline = time.monotonic() + seconds

    def due(attack: Attack) -> bool:
        made = tallies[attack.name].attempts
        return made == 0 or (time.monotonic() < deadline and (attempts is None or made < attempts))

    while waiting := [attack for attack in attacks if due(attack)]:
        attack = min(waiting, key=lambda one: tallies[one.name].seconds / one.share)
        tally = tallies[attack.name]
        start = time.monotonic()
        number = seed + tally.attempts
        outcome = _attempt(attack, number)
        tally.counts[outcome.label] += 1
        if outcome.broke:
            finding = Finding(attack.name, number, outcome, attack.minimise(number, outcome))
            tally.findings.append(finding)
            report(finding)
        empty(attack.folder)
        tally.seconds += time.monotonic() - start
        progress(tallies)
    return tallies


def _attempt(attack: Attack, seed: int) -> Outcome:
    try:
        return attack.attempt(seed)
    except Exception:  # noqa: BLE001 - what escapes is a finding
        return Outcome("traceback", broke=True, detail=traceback.format_exc())


def empty(folder: Path) -> None:
    """Remove what attempts left, but for names with a leading dot: what they have in common."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
