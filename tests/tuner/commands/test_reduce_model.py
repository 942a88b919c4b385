"""`tune reduce` finds faults that are planted in models of the zoo, and little else is left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.tuner.commands.planted_faults import BY_DAY, BY_NIGHT, Fault, plant
from tunefarm.tuner.commands.reduce_model import minimise

MOST_NODES = 10


def reduced(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tunefarm.tuner.commands.entry", "reduce", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)


def check_fault(fault: Fault, folder: Path) -> None:
    arguments, output = plant(fault, folder)
    done = reduced(folder, *arguments, "-o", "small.onnx", "--json", "-")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    small = onnx.load(folder / "small.onnx")
    assert len(small.graph.node) == len(result["nodes"]) <= MOST_NODES
    if fault.compiler:
        assert [node.op_type for node in small.graph.node] == ["Conv", fault.operator]
    else:
        assert output in [name for node in small.graph.node for name in node.output]
    with np.load(folder / "small.npz") as inputs:
        assert set(inputs) == {info.name for info in small.graph.input}


@pytest.mark.parametrize("fault", BY_DAY, ids=lambda fault: fault.name)
def test_a_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    check_fault(fault, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", BY_NIGHT, ids=lambda fault: fault.name)
def test_more_faults_are_found(fault: Fault, tmp_path: Path) -> None:
    check_fault(fault, tmp_path)


@pytest.mark.parametrize(
    ("culprits", "count"),
    [({5}, 1), ({0}, 1), ({99}, 1), ({3, 4}, 2), ({3, 90}, 2), (set(range(0, 100, 9)), 12)],
)
def test_what_is_needed_is_left(culprits: set[int], count: int) -> None:
    calls = []

    def fails(items: Sequence[int]) -> bool:
        calls.append(items)
        return culprits <= set(items)

    assert minimise(range(100), fails) == sorted(culprits)
    assert len(culprits) == count
    assert len(calls) < 40 * count
