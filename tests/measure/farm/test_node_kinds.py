"""A cluster whose nodes are of two kinds: each candidate on a node of its own, none elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import ray
from ray.cluster_utils import Cluster

from tests.end_to_end.tiny_model import tiny_model
from tests.measure.fault_kernels import COMPILE_FAULT, make_request
from tests.measure.simulated_nodes import COMPILE_HERE, KIND, PROBE
from tests.targets import target_named
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.target import Target, host_target
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import CallsNodes, Runner, RunnerOptions
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.tuner.job_request import JobRequest
from tunefarm.tuner.search.measuring import runner_options
from tunefarm.tuner.tune_model import tune_model

pytestmark = pytest.mark.slow
needs_a_lesser_kind = pytest.mark.skipif(
    "avx512f" not in host_target().features, reason="x86-64-v3 is no lesser kind than this CPU"
)
HOST = host_target()
LESSER = target_named("x86-64-v3")


@pytest.fixture(scope="module")
def kind_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the second node says that it is."""
    path = tmp_path_factory.mktemp("kinds") / "kind"
    path.write_text("x86-64-v3")
    return path


@pytest.fixture(scope="module")
def cluster(kind_file: Path) -> Iterator[Any]:
    """Two nodes of this machine's kind, and one that says it is an x86-64-v3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made: Any = Cluster()
        options = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
        made.add_node(**options)
        made.add_node(**options, env_vars={KIND: str(kind_file)})
        made.wait_for_nodes()
        yield made
        if ray.is_initialized():
            ray.shutdown()
        made.shutdown()


def join(cluster: Any, **options: Any) -> Runner:
    values = {"compile": COMPILE_FAULT, "targets": (HOST, LESSER), "overlap": "never", **options}
    return create_runner("ray", RunnerOptions(address=cluster.address, probe=PROBE, **values))


def collect(runner: Runner, count: int) -> list[MeasureResult]:
    results: list[MeasureResult] = []
    deadline = time.monotonic() + 120
    while len(results) < count:
        assert time.monotonic() < deadline, f"{len(results)} of {count} results"
        results += runner.results(timeout=1.0)
    return results


@needs_a_lesser_kind
def test_one_job_tunes_for_both_kinds(cluster: Any, tmp_path: Path) -> None:
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    settings = load_settings(
        "ci",
        {
            "compile.targets": ("x86-64-v3", "host"),
            "measure.address": cluster.address,
            "measure.overlap": "never",
            "search.total_trials": 12,
            "database.url": str(tmp_path / "tuning.db"),
        },
        environment={},
    )

    def runner_of(settings: Settings, target: Target, notify: Any) -> Runner:
        options = runner_options(settings, target, notify)
        return create_runner("ray", replace(options, probe=PROBE, compile=COMPILE_HERE))

    result = tune_model(JobRequest(tmp_path / "tiny.onnx", settings, make_runner=runner_of))
    assert {status.target for status in result.tasks} == {HOST.cpu, LESSER.cpu}
    assert [(item.cpu, item.elsewhere) for item in result.targets] == [
        (HOST.cpu, False),
        (LESSER.cpu, True),
    ]
    for item in result.targets:  # a node of the other kind has measured the other one
        assert item.latency is not None and item.latency.untuned > 0
    with Store.open(tmp_path / "tuning.db") as store:
        for target in (HOST, LESSER):
            keys = [key for key in queries.tasks(store) if key.target == target.key]
            trials = [trial for key in keys for trial in queries.trials(store, key)]
            assert trials and all(trial.status == "ok" for trial in trials)
        assert len({key.target for key in queries.tasks(store)}) == 2


@needs_a_lesser_kind
@pytest.mark.nightly
def test_a_node_that_is_of_another_kind_times_nothing_and_a_target_without_one_is_refused(
    cluster: Any, kind_file: Path
) -> None:
    """Its worker asks the CPU again: what the node was taken for does not count."""
    fresh = make_request("none", options={"fresh_process": 1})
    with join(cluster) as runner:
        runner.submit(replace(fresh, request_id="before", target=LESSER.key))
        assert collect(runner, 1)[0].status is Status.OK
        assert isinstance(runner, CallsNodes)
        assert runner.call_on(LESSER.key, PROBE, (), 60.0) == LESSER
        with pytest.raises(MeasureError, match="on a x86-64-v3: there is no math:cosh2"):
            runner.call_on(LESSER.key, "math:cosh2", (), 60.0)
        kind_file.write_text("x86-64-v2")
        with pytest.raises(MeasureError, match="x86-64-v2 is no node for x86-64-v3"):
            runner.call_on(LESSER.key, PROBE, (), 60.0)
        runner.submit(replace(fresh, request_id="after", target=LESSER.key))
        (result,) = collect(runner, 1)
    assert result.status is Status.INFRASTRUCTURE
    assert "x86-64-v2 is no node for x86-64-v3" in result.error
    expected = rf"no node of the cluster is a {LESSER.key} \(there are: .*x86-64-v2"
    with pytest.raises(MeasureError, match=expected):
        join(cluster)


def test_nodes_of_another_target_are_not_used(cluster: Any) -> None:
    with pytest.raises(MeasureError, match="no node of the cluster"):
        join(cluster, targets=(replace(HOST, cpu="another"),))


def test_a_missing_token_file_is_refused(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="no token file"):
        join(cluster, token_file=str(tmp_path / "token"))


@needs_a_lesser_kind
@pytest.mark.parametrize("runner", ["local", "ray"])
def test_one_machine_alone_does_not_measure_for_another_kind(runner: str) -> None:
    expected = rf"cannot measure for x86-64-v3: it stands for {HOST.cpu} \(--address joins"
    with pytest.raises(MeasureError, match=expected):
        create_runner(runner, RunnerOptions(targets=(HOST, LESSER)))
