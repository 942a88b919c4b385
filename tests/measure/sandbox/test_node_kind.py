"""Which of a job's targets a machine stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.measure.simulated_nodes import KIND, PROBE
from tests.targets import target_named
from tunefarm.compiler.target import Target, host_target
from tunefarm.measure.sandbox.node_kind import kind_of, this_node
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.measure_role import other_kind

V2, V3, V4 = target_named("x86-64-v2"), target_named("x86-64-v3"), target_named("x86-64-v4")
ZEN4, ZEN5 = target_named("znver4"), target_named("znver5")
RAPIDS, NEON = target_named("sapphirerapids"), target_named("armv8-neon")
A_ZEN5 = replace(ZEN5, features=tuple(sorted({*ZEN5.features, "sse4a"})), l3_bytes=1 << 20)
"""Such a CPU as it tells of itself, not quite as it is described."""


@pytest.mark.parametrize(
    ("node", "wanted", "expected"),
    [
        (ZEN5, (ZEN5, V3), ZEN5),
        (A_ZEN5, (ZEN5, V3), ZEN5),
        (A_ZEN5, (RAPIDS, V4, V3), V4),
        (A_ZEN5, (V3, V2), V3),
        (ZEN4, (ZEN5, V3), V3),  # of another CPU's records nothing is known of this one
        (A_ZEN5, (ZEN4,), None),  # though it could run that code
        (A_ZEN5, (RAPIDS, NEON), None),
        (target_named("neoverse-v1"), (V3, NEON), NEON),
        (V2, (V3, V4), None),
    ],
)
def test_a_node_stands_for_what_its_cpu_is(
    node: Target, wanted: tuple[Target, ...], expected: Target | None
) -> None:
    assert kind_of(node, wanted) == expected


def test_a_machine_tells_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_node() == host_target()
    monkeypatch.setenv(KIND, "x86-64-v2")
    assert this_node(PROBE) == V2


@pytest.mark.parametrize(("told", "is_right"), [("x86-64-v3", True), ("x86-64-v2", False)])
def test_a_worker_asks_the_cpu_again(
    told: str, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KIND, told)
    kinds = (V3.to_json(), V2.to_json())
    settings = WorkerSettings((0,), 1, V3.to_json(), "", kinds=kinds, probe=PROBE)
    problem = other_kind(WorkerSettings.from_json(settings.to_json()))
    assert problem == "" if is_right else f"stands for {V2.key}" in problem
    assert other_kind(replace(settings, kinds=())) == ""
