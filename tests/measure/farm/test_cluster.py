"""A Ray cluster of several nodes on this machine: they add up, join, leave, and are lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.measure.farm.test_node_kinds import collect
from tests.measure.fault_kernels import COMPILE_FAULT, make_request
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.ray_runner import RayRunner
from tunefarm.measure.farm.ray_start import head_client
from tunefarm.measure.farm.runner import Runner, RunnerOptions
from tunefarm.measure.measurement import Status

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
NODES = 3
OPTIONS = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose nodes are processes of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made: Any = Cluster()
        for _ in range(NODES):
            made.add_node(**OPTIONS)
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


def drain(node: str) -> None:
    """Tell a node to leave, as `ray drain-node` does."""
    address = ray.get_runtime_context().gcs_address
    preempted = 2
    accepted, reason = head_client(address).drain_node(node, preempted, "going", 0)
    assert accepted, reason


def test_nodes_join_leave_and_are_lost_while_requests_run(cluster: Any) -> None:
    """One joins, one is told to leave, one is killed: each request has its one good answer."""
    told: list[str] = []
    lost = threading.Event()

    def notify(line: str) -> None:
        told.append(line)
        if "lost" in line:
            lost.set()

    with join(cluster, overlap="never", notify=notify) as runner:
        assert isinstance(runner, RayRunner)
        assert len(runner.backend.plans) == NODES
        whole = runner.capacity
        submit(runner, 0, 20)
        results = collect(runner, 4)
        cluster.add_node(**OPTIONS)
        number = 20
        while runner.capacity <= whole:
            assert number < 200, told
            submit(runner, number, 1)
            number += 1
            results += collect(runner, 1)
        leaving = cluster.list_all_nodes()[1]
        drain(leaving.node_id)
        submit(runner, number, 20)
        cluster.remove_node(cluster.list_all_nodes()[2], allow_graceful=False)
        results += collect(runner, number + 20 - len(results))
        assert lost.wait(120.0), told  # Ray takes its time to be sure
    assert sorted(int(result.request_id) for result in results) == list(range(number + 20))
    assert {result.status for result in results} == {Status.OK}
    assert [line.partition(":")[0] for line in told] == [
        "a node has joined",
        "a node leaves",
        "a node is lost",
    ]
    cluster.remove_node(leaving)
