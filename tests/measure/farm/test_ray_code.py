"""A Ray whose workers find another tunefarm measures nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.measure.sandbox.test_versions import make_package
from tests.processes import python

pytestmark = pytest.mark.slow
PROGRAM = """
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import RunnerOptions
try:
    create_runner("ray", RunnerOptions(overlap="never"))
except MeasureError as error:
    print(error)
"""


def test_a_program_that_has_started_ray_in_the_folder_of_another_version(tmp_path: Path) -> None:
    """Ray has its workers look in the folder of the driver first: the program's Ray does so."""
    package = make_package(tmp_path)
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment["HOME"] = str(tmp_path)  # where Ray keeps a token
    done = python(
        "-P",
        "-c",
        PROGRAM,
        cwd=tmp_path,
        env={**environment, "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("Ray's workers would measure another tunefarm than this process")
    assert "and 9.9 (files " in line and f"and {package} there" in line
