"""Attacks the project and says what broke.

    python -m tests.attack [NAME ...] [--seconds 60] [--seed 0] [--attempts N] [--json FILE]

Each attack makes seeded attempts; a finding prints the command that repeats it and, where that is
possible, a smaller input that breaks the same. Exit status 1 if anything was found.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

from tests.attack.attacks import attack_names, load_attack
from tests.attack.campaign import Finding, Tally, run_campaign

_PROGRESS_SECONDS = 60.0


def main(arguments: list[str]) -> int:
    """Run a campaign; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(attack_names()))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attempts", type=int, help="of each attack at most")
    parser.add_argument("--json", metavar="FILE", help="counts and findings")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(attack_names())
    if unknown:
        parser.error(
            f"no attack {', '.join(sorted(unknown))}; there are {', '.join(attack_names())}"
        )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tunefarm-attack-")))
        attacks = []
        for name in options.names or attack_names():
            (folder / name).mkdir()
            with redirect_stdout(io.StringIO()):  # a build says what it has built
                attacks.append(load_attack(name)(folder / name))
            stack.callback(attacks[-1].close)
        tallies = run_campaign(
            attacks,
            seed=options.seed,
            seconds=options.seconds,
            attempts=options.attempts,
            report=lambda finding: print(finding, flush=True),
            progress=_Progress(),
        )
    for name, tally in tallies.items():
        print(_line(name, tally))
    if options.json:
        Path(options.json).write_text(json.dumps(_as_json(tallies), indent=2) + "\n")
    return 1 if any(tally.findings for tally in tallies.values()) else 0


class _Progress:
    """Says on stderr, now and then, how far a campaign is."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, tallies: dict[str, Tally]) -> None:
        if time.monotonic() - self._said >= _PROGRESS_SECONDS:
            self._said = time.monotonic()
            made = ", ".join(f"{tally.attempts} {name}" for name, tally in tallies.items())
            print(f"so far: {made}", file=sys.stderr, flush=True)


def _line(name: str, tally: Tally) -> str:
    counts = ", ".join(f"{count} {label}" for label, count in tally.counts.most_common())
    return (
        f"{name:12} {tally.attempts:6} attempts in {tally.seconds:6.1f} s, "
        f"{len(tally.findings)} findings: {counts}"
    )


def _as_json(tallies: dict[str, Tally]) -> dict[str, object]:
    return {
        name: {
            "attempts": tally.attempts,
            "seconds": tally.seconds,
            "counts": dict(tally.counts),
            "findings": [_finding_as_json(finding) for finding in tally.findings],
        }
        for name, tally in tallies.items()
    }


def _finding_as_json(finding: Finding) -> dict[str, object]:
    return {
        "seed": finding.seed,
        "label": finding.outcome.label,
        "detail": finding.outcome.detail,
        "repro": finding.repro,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
