"""The process of a command: what is done for it alone."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from tests.processes import python
from tunefarm.tuner.commands.entry import begins, short_lived

PROGRAM = """
import gc, sys
import tunefarm.compiler.frontend.zoo
from tunefarm.configs.errors import TunefarmError
from tunefarm.tuner.building import flow
from tunefarm.tuner.commands.entry import main

def work(*_, **options):
    raise TunefarmError(f"collects garbage: {gc.isenabled()}")

tunefarm.compiler.frontend.zoo.write_model = flow.build = work
main()
"""


@pytest.mark.parametrize(
    ("command", "collects"),
    [("build --model no.onnx --untuned --output no.tuned", False), ("zoo mlp --output no", True)],
)
def test_only_a_short_command_looks_for_no_garbage(
    command: str, collects: bool, tmp_path: Path
) -> None:
    ran = python("-c", PROGRAM, *command.split(), cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (1, f"error: collects garbage: {collects}\n")


def test_a_command_that_a_program_runs_leaves_that_as_it_is() -> None:
    before = gc.isenabled(), sys.getswitchinterval()
    begins()
    short_lived()
    assert (gc.isenabled(), sys.getswitchinterval()) == before
