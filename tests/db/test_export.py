"""Export and import as JSON lines: same content, and nothing unchecked comes in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.db.examples import KEY, build, failed, latency, paired, plan, populate, trial
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import model_queries, queries
from tunefarm.db.export import VERSION, export_records, import_records
from tunefarm.db.records import BestRecord, JobTask, hash_json
from tunefarm.db.store import Store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An export of a store with a job and three trials."""
    path = tmp_path / "records.jsonl"
    with Store.open(":memory:") as store:
        populate(store)
        job = store.start_job("resnet18", "abc", {"search": {"seed": 3}}, [JobTask(KEY, 4)])
        store.add([paired(1, 3, job=job.id), failed(2, error="a\nb"), trial(3)])
        hash = trial(1).schedule_hash
        best = BestRecord(KEY, hash, "request-1", 1.0, 0.5, 0.4, 0.6, (hash, "b"), job.id, 7.0)
        store.add([best])
        store.add([build(1)])
        store.add([plan(1)])
        store.add([latency(1, job=job.id), latency(2, purpose="verify")])
        store.finish_job(job.id, "interrupted", {"done": 0.5})
        assert export_records(store, path) == 3
    return path


def content(store: Store) -> list[object]:
    return [
        queries.targets(store),
        queries.workloads(store),
        queries.jobs(store),
        list(queries.iterate_trials(store)),
        list(queries.iterate_bests(store)),
        model_queries.builds(store),
        model_queries.plans(store),
        model_queries.latencies(store),
    ]


def test_import_gives_what_was_exported(file: Path, tmp_path: Path) -> None:
    with Store.open(":memory:") as store:
        assert import_records(store, file).trials == 3
        again = tmp_path / "again.jsonl"
        assert export_records(store, again) == 3
        assert again.read_text() == file.read_text()
        (job,) = queries.jobs(store)
        assert (job.state, job.progress, job.tasks) == (
            "interrupted",
            {"done": 0.5},
            (JobTask(KEY, 4),),
        )


def test_import_twice_adds_nothing(file: Path) -> None:
    with Store.open(":memory:") as store:
        import_records(store, file)
        before = content(store)
        assert import_records(store, file).trials == 0
        assert content(store) == before


def test_import_adds_to_what_is_there(file: Path) -> None:
    with Store.open(":memory:") as store:
        populate(store)
        store.add([trial(3), trial(4)])
        assert import_records(store, file).trials == 2
        assert queries.count_trials(store) == {"ok": 3, "crashed": 1}


def test_export_overwrites_nothing(file: Path) -> None:
    before = file.read_text()
    with Store.open(":memory:") as store, pytest.raises(DatabaseError, match="exists already"):
        export_records(store, file)
    assert file.read_text() == before


def change(number: int, edit: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    """Edit the line with this index, as JSON."""

    def apply(text: str) -> str:
        lines = text.splitlines()
        value = json.loads(lines[number])
        value.pop("checksum")
        edit(value)
        value["checksum"] = hash_json(value)
        lines[number] = json.dumps(value)
        return "\n".join(lines)

    return apply


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: "", "is empty"),
        (lambda text: text[:-20], ":13: "),
        (lambda text: text[: text.rindex('{"kind":"end"')], "is cut off: it has no end"),
        (lambda text: text + text.splitlines()[1], ":14: this stands behind the end"),
        (lambda text: text.replace('"records":11', '"records":8'), "11 records stand above"),
        (lambda text: text.replace('"latency":0.5', '"latency":0.6'), ":5: the line is not what"),
        (lambda text: text.replace("signal 11", "signal 12").replace("a\\nb", "c"), ":6: the line"),
        (lambda text: "[]\n" + text, ":1: this is not a file of records"),
        (lambda text: text.replace('"version":9}', '"version":10}', 1), ":1: version 10 is not"),
        (lambda text: text.replace('"version":9}', '"version":true}', 1), "version True is not"),
        (change(7, lambda line: line.update(request_id="x")), ":8: trial 'x "),
        (change(7, lambda line: line.update(job="nobody")), "job 'nobody' does not stand above"),
        (change(7, lambda line: line.update(ratio=None)), ":8: ratio: None is not a finite"),
        (change(8, lambda line: line.update(target="t")), ":9: target 't' does not stand above"),
        (change(10, lambda line: line.update(job="nobody")), "job 'nobody' does not stand above"),
        (change(10, lambda line: line.update(purpose="fun")), ":11: purpose: 'fun' is no purpose"),
        (change(8, lambda line: line.pop("report")), ":9: field 'report' is missing"),
        (lambda text: text.replace("0.5", "NaN"), "NaN is not a JSON number"),
        (lambda text: text.splitlines()[0] + "\n3", ":2: this is not an object"),
        (change(5, lambda line: line.update(kind="x")), ":6: unknown kind 'x'"),
        (change(5, lambda line: line.update(speed=1)), ":6: unknown field 'speed'"),
        (change(5, lambda line: line.pop("samples")), ":6: field 'samples' is missing"),
        (change(5, lambda line: line.update(samples=["1"])), ":6: samples: '1' is not a finite"),
        (change(4, lambda line: line.update(latency=None)), ":5: ok without a latency"),
        (change(4, lambda line: line.update(latency=10**400)), "is not a finite number"),
        (change(4, lambda line: line.update(ratio=-0.5)), ":5: ratio: -0.5 is not a number from"),
        (change(4, lambda line: line.update(ratio=0)), ":5: ratio: 0.0 is not a number from"),
        (change(4, lambda line: line.update(low=0.6)), ":5: the ratio 0.5 is not from 0.6 to 0.55"),
        (change(4, lambda line: line.update(high=0.49)), ":5: the ratio 0.5 is not from 0.45 to"),
        (change(4, lambda line: line.update(reference=None)), ":5: a part of what it was measured"),
        (change(4, lambda line: line.update(reference="x" * 17)), ":5: reference: 'xxx"),
        (change(4, lambda line: line.update(samples=[1.0])), ":5: it has other numbers of slices"),
        (change(5, lambda line: line.update(high=1.0)), ":6: a part of what it was measured"),
        (change(4, lambda line: line.update(job="nobody")), "job 'nobody' does not stand above"),
        (change(4, lambda line: line["key"].update(threads=True)), ":5: key: threads: True is not"),
        (change(4, lambda line: line["key"].update(target="t")), "target 't' does not stand above"),
        (change(3, lambda line: line.update(state="gone")), ":4: state: 'gone' is no state"),
        (change(1, lambda line: line.update(key="\x1b[2J")), ":2: key: "),
        (
            change(2, lambda line: line.update(key="<script>")),
            ":3: key: '<script>' is not the hash",
        ),
        (change(2, lambda line: line.update(name="a\rb")), ":3: name: 'a\\rb' has control"),
        (change(2, lambda line: line.update(name="x" * 5000)), "has more than 4096 characters"),
        (change(3, lambda line: line.update(started=1e300)), ":4: started: 1e+300 is not a number"),
        (change(4, lambda line: line.update(created=-1)), ":5: created: -1.0 is not a number from"),
        (change(4, lambda line: line.update(latency=1e30)), ":5: latency: 1e+30 is not a number"),
        (change(8, lambda line: line.update(report=[])), ":9: report: [] is not an object"),
        (change(3, lambda line: line.update(tasks=[3])), ":4: tasks: JobTask is not an object"),
    ],
)
def test_damaged_file_is_refused_as_a_whole(
    file: Path, damage: Callable[[str], str], reason: str
) -> None:
    file.write_text(damage(file.read_text()))
    with Store.open(":memory:") as store:
        with pytest.raises(DatabaseError) as caught:
            import_records(store, file)
        assert str(file) in str(caught.value)
        assert reason in str(caught.value)
        assert not any(content(store))


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with Store.open(":memory:") as store:
        with pytest.raises(DatabaseError, match="not a text file"):
            import_records(store, path)
        with pytest.raises(DatabaseError, match="cannot read"):
            import_records(store, tmp_path / "nowhere.jsonl")


PAIR = ("reference", "ratio", "low", "high", "reference_samples")


_FIRST_WITH = {"best": 2, "build": 2, "plan": 6, "latency": 7}
"""The version that first had lines of a kind, where that was not the first."""


def as_of_version(version: int, text: str) -> str:
    """An export as an earlier version wrote it: only 6 had plans, version 1 no bests and builds."""
    header, *lines, end = map(json.loads, text.splitlines())
    old = [{**header, "version": version}]
    for line in lines:
        if version < _FIRST_WITH.get(line["kind"], 1):
            continue
        del line["checksum"]
        if line["kind"] == "trial" and version < 5:
            for name in PAIR:
                del line[name]
        if line["kind"] == "plan" and version < 9:
            del line["cpu"]
        old.append({**line, "checksum": hash_json(line)} if version >= 4 else line)
    end["records"] = len(old) - 1
    return "\n".join(map(json.dumps, [*old, end] if version >= 4 else old))


@pytest.mark.parametrize("version", range(1, VERSION))
def test_files_of_earlier_versions_are_read(version: int, file: Path) -> None:
    file.write_text(as_of_version(version, file.read_text()))
    with Store.open(":memory:") as store:
        assert import_records(store, file).trials == 3
        assert (list(queries.iterate_bests(store)) == []) == (version == 1)
        alone = all(trial.reference is None for trial in queries.iterate_trials(store))
        assert alone == (version < 5)
        assert (model_queries.plans(store) == []) == (version < 6)
        assert (model_queries.latencies(store) == []) == (version < 7)


def test_pair_in_a_file_from_before_pairs_is_refused(file: Path) -> None:
    text = as_of_version(3, file.read_text()).replace('"error"', '"ratio": 0.5, "error"', 1)
    file.write_text(text)
    with (
        Store.open(":memory:") as store,
        pytest.raises(DatabaseError, match=":5: unknown field 'ratio'"),
    ):
        import_records(store, file)
