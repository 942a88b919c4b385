"""Does a job keep what it claims? Repeats `tune --json` and says what became of each job's claims.

    python -m tests.benchmarks.search honesty MODEL [--repeat 5] [--minutes 4]

MODEL is an ONNX file, or the name of a network of the zoo. Every job has a database of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tunefarm.compiler.frontend.zoo import write_model

ENTRY = "from tunefarm.tuner.commands.entry import main; main()"


def honesty(model: str, repeat: int, minutes: float) -> None:
    """Print a line for each job, and the medians."""
    rows: list[tuple[float, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(model)
        if not path.exists():
            path = write_model(model, Path(folder) / f"{model}.onnx")
        for number in range(repeat):
            result = tuned(path, Path(folder) / f"{number}.db", minutes, seed=number)
            rows.append(_figures(result))
            print(_line(f"job {number + 1}", rows[-1], minutes), flush=True)
    print(_line("median", [median(column) for column in zip(*rows, strict=True)], minutes))


def tuned(
    model: Path, database: Path, minutes: float, seed: int, precision: str = "default"
) -> Mapping[str, Any]:
    """What `tune --json` says of a job."""
    options = ["--minutes", str(minutes), "--seed", str(seed), "--json", "-"]
    options += ["--precision", precision]
    command = [sys.executable, "-c", ENTRY, "--model", str(model), "--db", str(database), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    result: Mapping[str, Any] = json.loads(done.stdout)
    return result


def _figures(result: Mapping[str, Any]) -> tuple[float, ...]:
    """Share lost to noise, claimed over confirmed, speed-up, trials a second, minutes taken."""
    search = result["search"]
    return (
        search["lost_to_noise"] / max(1, search["trials"]),
        search["claimed_seconds"] / search["confirmed_seconds"],
        search["speedup"],
        search["trials"] / result["seconds"],
        result["seconds"] / 60.0,
    )


def _line(name: str, figures: Sequence[float], asked: float) -> str:
    lost, claimed, speed_up, rate, minutes = figures
    return (
        f"{name}: {100 * lost:.1f} % lost to noise, claimed / confirmed {claimed:.3f}, "
        f"{speed_up:.2f}x as fast, {rate:.1f} trials a second, "
        f"{minutes:.2f} minutes of {asked:g} asked ({100 * (minutes / asked - 1):+.1f} %)"
    )
