"""What kernels cost: from records where there are any, else estimates on the same scale."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from tests.db.examples import KEY, failed, trial
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.estimate import Estimate
from tunefarm.db.records import BestRecord, TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.tuner.plans.costs import SEARCHED, KernelCosts

pytestmark = pytest.mark.usefixtures("populated")

ESTIMATES = {"a": 1e-3, "b": 2e-3, "c": 4e-3, "b2": 8e-3}
DEVIATION = 0.5


def key_of(name: str) -> TaskKey:
    return KEY if name == "a" else replace(KEY, threads=10 + list(ESTIMATES).index(name))


def costs(store: Store) -> KernelCosts:
    kernels = {name: cast(FusedKernel, SimpleNamespace(name=name)) for name in ESTIMATES}
    return KernelCosts(
        store, kernels, key_of, lambda _, key: Estimate(ESTIMATES[key], DEVIATION, key[0])
    )


def record(store: Store, name: str, latency: float, number: int = 0) -> TrialRecord:
    made = trial(number, latency, key=key_of(name), request_id=f"{name}-{number}")
    store.add([made])
    return made


def test_without_records_estimates_count(store: Store) -> None:
    found = costs(store)
    assert found["b"].seconds == pytest.approx(2e-3) and not found["b"].measured
    assert found["b"].optimistic == pytest.approx(2e-3 * math.exp(-DEVIATION))
    assert found.of_calls({"a": 2, "b": 1}) == pytest.approx(4e-3)
    assert not found.is_measured({"a": 1})


def test_what_was_measured_counts_and_scales_the_estimates(store: Store) -> None:
    record(store, "a", 3e-3)
    found = costs(store)
    assert found["a"].measured
    assert found["a"].seconds == found["a"].optimistic == pytest.approx(3e-3)
    assert found["b"].seconds == pytest.approx(6e-3)
    assert found.is_measured({"a": 7}) and not found.is_measured({"a": 1, "b": 1})


def test_estimates_are_scaled_by_kernels_of_the_same_kind(store: Store) -> None:
    record(store, "a", 3e-3)
    record(store, "b", 2e-3)
    found = costs(store)
    assert found["b2"].seconds == pytest.approx(8e-3)
    assert found["c"].seconds == pytest.approx(2 * 4e-3)


def test_records_that_come_later_are_seen_when_they_are_learnt(store: Store) -> None:
    found = costs(store)
    assert not found["a"].measured
    record(store, "a", 3e-3)
    assert not found["a"].measured
    found.learn(["a"])
    assert found["a"].seconds == pytest.approx(3e-3)


def test_a_kernel_whose_default_fails_costs_infinitely_much(store: Store) -> None:
    store.add([failed(1)])
    found = costs(store)
    assert found["a"].seconds == math.inf
    assert found["b"].seconds == pytest.approx(2e-3)


def test_defaults_are_expected_to_gain_what_others_have_gained(store: Store) -> None:
    default = record(store, "a", 4e-3)
    job = store.start_job("net", "hash", {})
    best = BestRecord(
        KEY,
        default.schedule_hash,
        default.request_id,
        default_latency=4e-3,
        ratio=0.5,
        low=0.49,
        high=0.51,
        met=(default.schedule_hash,),
        job=job.id,
    )
    store.add([best])
    record(store, "b", 10e-3)
    found = costs(store)
    assert found["a"].seconds == pytest.approx(2e-3)
    assert found["b"].seconds == pytest.approx(5e-3)
    scale = (4.0 + 5.0) / 2  # of the defaults over their estimates
    assert found["c"].seconds == pytest.approx(0.5 * scale * 4e-3)


def test_a_searched_kernel_counts_as_it_is(store: Store) -> None:
    for number in range(SEARCHED):
        record(store, "a", 1e-3 + number * 1e-4, number)
    assert costs(store)["a"].seconds == pytest.approx(1e-3, rel=0.2)
