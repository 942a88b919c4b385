"""Latencies of whole models: kept, found again, and read from what others may have damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import load_settings
from tunefarm.db import model_queries
from tunefarm.db.records import LatencyRecord
from tunefarm.db.store import Store
from tunefarm.tuner.records.model_latencies import (
    AppliedKernel,
    Conditions,
    EngineTime,
    MachineRoof,
    ModelStep,
    ModelTimes,
    Ratio,
    measured_models,
    newest,
    record_latency,
)

TIMES = ModelTimes(
    tuned=1e-3,
    llvm="20.1.8",
    spread=0.01,
    untuned=2e-3,
    over_untuned=Ratio(0.5, 0.48, 0.52),
    refused=Ratio(1.1, 1.05, 1.15),
    claimed=0.9e-3,
    confirmed=0.95e-3,
    sizes={"batch": 4},
    steps=(
        ModelStep("conv", "ab12", 6e-4),
        ModelStep("copy", "", 1e-5),
        ModelStep("add", "cd34", None),
    ),
    kernels={"ab12": AppliedKernel("conv", 1, "tuned", "0123456789abcdef", 6e-4, 1000)},
    engines=(
        EngineTime("tunefarm", "f32", 1e-3, Ratio(1.0, 1.0, 1.0)),
        EngineTime("onnxruntime", "f32", 2e-3, Ratio(2.0, 1.9, 2.1), "batch=4", 1e-6, 1.0, True),
    ),
    roof=MachineRoof(1e11, 2e10),
)
MACHINE = {"cpu": "made-up", "fingerprint": "f1"}


def keep(store: Store, times: ModelTimes = TIMES, model: str = "hash") -> LatencyRecord:
    conditions = Conditions.of(load_settings(environment={}), model, host_target())
    return record_latency(store, times, "model", conditions, "bench", MACHINE)


def test_times_survive_the_database(store: Store) -> None:
    kept = keep(store)
    found = newest(store)
    assert found is not None
    assert found.times == TIMES
    assert found.record == kept
    assert newest(store, machine="f1", purpose="bench", threads=kept.threads) == found


def test_steps_with_the_graph_that_earlier_versions_kept_are_read() -> None:
    data = TIMES.to_json()
    before = {**data, "steps": [[*step, [0]] for step in data["steps"]], "graphs": {"rules": []}}
    assert ModelTimes.from_json(before) == TIMES


@pytest.mark.parametrize(
    "wanted",
    [{"model_hash": "other"}, {"machine": "f2"}, {"purpose": "job"}, {"job": "j"}, {"threads": 99}],
)
def test_records_of_other_conditions_are_left_out(wanted: dict[str, Any], store: Store) -> None:
    keep(store)
    assert newest(store, **wanted) is None


def test_the_newest_comes_first(store: Store) -> None:
    keep(store)
    keep(store, replace(TIMES, tuned=5e-4))
    assert [item.times.tuned for item in measured_models(store)] == [5e-4, 1e-3]


def broken_values() -> Iterator[tuple[list[Any], Any]]:
    """Where in the JSON, and what others may have written there."""
    for name in TIMES.to_json():
        yield [name], {"no": ["such", "form"]}
    for path in (["tuned"], ["steps", 0, 2], ["over_untuned", "low"], ["engines", 0, "seconds"]):
        yield from ((path, bad) for bad in (-1.0, True, "1", 10**400))
    yield ["tuned"], 0
    yield ["over_untuned", "high"], 0.4
    yield ["steps", 1], ["too", "short"]
    yield ["kernels", "ab12"], None
    yield ["kernels", "ab12", "name"], "x" * 100_000
    yield ["sizes", "batch"], 1.5


@pytest.mark.parametrize(("path", "bad"), list(broken_values()), ids=str)
def test_what_is_no_latency_is_refused_and_left_out(path: list[Any], bad: Any) -> None:
    data = json.loads(json.dumps(TIMES.to_json()))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = bad
    with pytest.raises(ValueError):
        ModelTimes.from_json(data)


def test_records_that_cannot_be_read_do_not_hide_the_others(store: Store) -> None:
    kept = keep(store)
    values: list[dict[str, Any]] = [{}, {"form": 2}, {"form": 1, "tuned": "fast"}]
    damaged = [
        replace(kept, id=f"other{number}", measured=measured, created=kept.created + 1)
        for number, measured in enumerate(values)
    ]
    store.add(damaged)
    assert len(model_queries.latencies(store)) == 4
    assert [item.record.id for item in measured_models(store)] == [kept.id]
