"""Every record is taken, or left with a reason; one command would change it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import model, tensor
from tests.tuner.fleet import ELSEWHERE, HERE, Fleet
from tunefarm.tuner.building.explain import Commands, Explanation, explain_build, explain_model
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def explained(fleet: Fleet, workload: str, **options: Any) -> Explanation:
    request = fleet.request(**options)
    commands = Commands({fleet.target.cpu: "tune verify m --quick"}, "tune m")
    found = {item.key: item for item in explain_model(request, commands)}
    return found[workload]


def reasons(item: Explanation) -> dict[str, int]:
    return {reason: left.records for left in item.left for reason in left.differs}


def test_a_tuned_kernel_names_its_record_and_the_slower_ones(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    with fleet.store() as store:
        fleet.tune(store)
        store.add([replace(fleet.trials(workload)[1], request_id="x", status="crashed")])
        broken = replace(fleet.trials(workload)[1], schedule=[["a"]], status="crashed")
        noisy = replace(broken, schedule=[["b"]], status="scattered")
        store.add([replace(broken, latency=None), replace(noisy, latency=None)])
    item = explained(fleet, workload)
    assert "tuned, record" in item.taken and "confirmed here" in item.taken
    assert item.command == ""
    count = len(fleet.schedules[workload].candidates) - 1
    assert reasons(item) == {"slower": count, "noisy": 1, "failed": 1}
    assert json.loads(json.dumps(item.to_json()))["key"] == workload
    assert len(item.lines) == 1 + len(item.left)


def test_keys_that_differ_are_named_with_what_to_type(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    with fleet.store() as store:
        for trial in fleet.trials(workload):
            store.add([replace(trial, key=replace(trial.key, threads=2))])
            store.add([replace(trial, key=replace(trial.key, numerics="strict"))])
    item = explained(fleet, workload)
    assert item.taken == "default schedule"
    assert set(reasons(item)) == {"threads", "precision"}
    assert all("build with --" in left.advice for left in item.left)
    assert item.command == "tune m"


def test_nominees_name_the_check_and_what_was_met_is_said_to_be(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    with fleet.store() as store:
        fleet.tune(store, ELSEWHERE, workloads=[workload])
    item = explained(fleet, workload)
    assert reasons(item) == {"nominee": len(fleet.schedules[workload].candidates)}
    assert item.command == "tune verify m --quick"
    assert f"measured on {ELSEWHERE}, the best of" in str(item.left[0])
    accepted = explained(fleet, workload, accept_nominees=True)
    assert "nominee" in accepted.taken and accepted.left == ()
    with fleet.store() as store:
        fleet.tune(store, HERE, workloads=[workload])
    assert "met" in reasons(explained(fleet, workload))


def test_a_kernel_of_which_only_the_default_was_tried_says_so(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    with fleet.store() as store:
        store.add(fleet.trials(workload, numbers=[0]))
    item = explained(fleet, workload)
    assert item.taken == "default schedule (record 1: nothing else was tried)"
    assert item.command == "tune m"


def test_a_record_names_the_one_that_it_was_measured_against(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    first, fast = (replace(t, latency=1e-5) for t in fleet.trials(workload, numbers=[0, 1]))
    pair: dict[str, Any] = {"reference": first.schedule_hash, "reference_samples": (1e-5,)}
    pair |= {"ratio": 0.5, "low": 0.49, "high": 0.51}
    with fleet.store() as store:
        store.add([first, replace(fast, latency=5e-6, samples=(5e-6,), **pair)])
    taken = explained(fleet, workload).taken
    assert taken.endswith("time relative to record 1: 0.500 (0.490 to 0.510)")


def test_a_kernel_without_a_record_says_so_for_each_target(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    fleet.store().close()
    assert explained(fleet, workload).taken == "default schedule (no record of this kernel)"
    targets = ["x86-64-v3", "x86-64-v4"]
    found = explain_model(fleet.request(settings={"compile.targets": targets}))
    assert [item.target for item in found].count("x86-64-v3") == len(found) // 2
    assert {f"{item.kernel} {item.key[:8]} for {item.target}:" for item in found} == {
        item.lines[0].split(" default")[0] for item in found
    }


def test_a_kernel_whose_candidates_are_one_schedule_is_tuned(tmp_path: Path) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    fleet = Fleet(tmp_path, model=model([node], [tensor("x", (1, 3))]))
    ((workload, found),) = fleet.schedules.items()
    assert found.space.size > 1 and len(found.candidates) == 1
    with fleet.store() as store:
        store.add(fleet.trials(workload))
    item = explained(fleet, workload)
    assert item.taken.startswith("tuned, record 1") and item.command == ""


def test_stale_records_that_do_not_replay_say_so(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    with fleet.store() as store:
        stale = fleet.trials(workload, version="7")[1]
        store.add([replace(stale, schedule=[["Unroll", "nowhere", "n"]])])
    item = explained(fleet, workload)
    assert reasons(item) == {"unfit": 1}
    assert "of compiler version 7" in str(item.left[0])


def test_a_build_explains_what_it_did(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fleet.store() as store:
        fleet.tune(store, ELSEWHERE)
    request = fleet.request()
    _, result = fleet.build()
    assert len(explain_build(request, result)) == len(fleet.kernels)
    monkeypatch.chdir(fleet.path)
    command = ["build", "tiny.onnx", "--db", "tuning.db", "-o", "x.tuned", "--explain"]
    assert run_command(app, [*command, "--no-cache", "--json", "x.json"]) == 0
    assert capsys.readouterr().out.count("  next: tune verify tiny.onnx") == len(fleet.kernels)
    assert len(json.loads(Path("x.json").read_text())["explained"]) == len(fleet.kernels)
    refused = ["build", "tiny.onnx", "--untuned", "-o", "x.tuned", "--explain"]
    assert run_command(app, refused) == 2
