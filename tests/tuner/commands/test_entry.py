"""The process of a command: what is done for it alone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

from tuner.commands.entry import short_lived

BUILD = """
import gc, sys
from configs.errors import TunefarmError
from tuner.building import flow
from tuner.commands.entry import main

def build(*_):
    raise TunefarmError(f"collects garbage: {gc.isenabled()}")

flow.build = build
sys.argv[1:] = ["build", "--model", "no.onnx", "--untuned", "--output", "no.tuned"]
main()
"""


def test_a_build_looks_for_no_garbage_in_a_process_of_its_own(
    tmp_path: Path, repository: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BUILD],
        env={**os.environ, "PYTHONPATH": str(repository)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ran.returncode, ran.stderr) == (1, "error: collects garbage: False\n")


def test_a_command_that_a_program_runs_leaves_that_as_it_is() -> None:
    before = gc.isenabled(), sys.getswitchinterval()
    short_lived()
    assert (gc.isenabled(), sys.getswitchinterval()) == before
