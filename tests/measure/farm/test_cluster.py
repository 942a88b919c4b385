"""A Ray cluster of several nodes on this machine: its nodes add up, and one may be lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from compiler.errors import MeasureError
from compiler.target import host_target
from measure.farm.make_runner import create_runner
from measure.farm.ray_runner import RayRunner
from measure.farm.runner import Runner, RunnerOptions
from measure.measurement import MeasureResult, Status
from tests.measure.fault_kernels import COMPILE_FAULT, make_request

pytestmark = pytest.mark.slow
NODES = 4


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, repository: Path) -> Iterator[Any]:
    """A cluster whose nodes are processes of this machine."""
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made: Any = Cluster()
    for _ in range(NODES):
        made.add_node(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False)
    made.wait_for_nodes()
    yield made
    if ray.is_initialized():
        ray.shutdown()
    made.shutdown()


def join(cluster: Any, **options: Any) -> Runner:
    return create_runner(
        "ray", RunnerOptions(address=cluster.address, compile=COMPILE_FAULT, **options)
    )


def submit(runner: Runner, first: int, count: int) -> None:
    for number in range(first, first + count):
        runner.submit(make_request("sleep 20000", str(number)))


def collect(runner: Runner, count: int) -> list[MeasureResult]:
    results: list[MeasureResult] = []
    deadline = time.monotonic() + 120
    while len(results) < count:
        assert time.monotonic() < deadline, f"{len(results)} of {count} results"
        results += runner.results(timeout=1.0)
    return results


def test_every_node_takes_part_and_a_lost_one_costs_no_result(cluster: Any) -> None:
    with join(cluster) as runner:
        assert isinstance(runner, RayRunner)
        assert len(runner.backend.plans) == NODES
        submit(runner, 0, 40)
        results = collect(runner, 10)
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        results += collect(runner, 40 - len(results))
        submit(runner, 40, 8)
        results += collect(runner, 8)
    assert sorted(int(result.request_id) for result in results) == list(range(48))
    assert {result.status for result in results} == {Status.OK}


def test_nodes_of_another_target_are_not_used(cluster: Any) -> None:
    from dataclasses import replace

    other = replace(host_target(), cpu="another")
    with pytest.raises(MeasureError, match="no node of the cluster"):
        join(cluster, targets=(other,))


def test_a_missing_token_file_is_refused(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="no token file"):
        join(cluster, token_file=str(tmp_path / "token"))
