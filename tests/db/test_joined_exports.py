"""Files of exports as people make them: joined, compressed, edited, cut off, of other versions."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.db.examples import failed, populate, trial
from tests.db.test_export import as_of_version
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries
from tunefarm.db.export import VERSION, Added, export_records, import_records
from tunefarm.db.records import Record, hash_json
from tunefarm.db.store import Store
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command

LINES = 6  # of an export of two trials: its ends, a target and a workload
NEWER = f'{{"format":"tunefarm-records","version":{VERSION + 1}}}\n'


def exported(folder: Path, name: str, trials: Sequence[Record]) -> str:
    path = folder / name
    with Store.open(":memory:") as store:
        populate(store)
        store.add(trials)
        export_records(store, path)
    return path.read_text()


@pytest.fixture
def first(tmp_path: Path) -> str:
    """An export of two trials."""
    return exported(tmp_path, "a.jsonl", [trial(1), failed(2)])


@pytest.fixture
def second(tmp_path: Path) -> str:
    """An export of one of them and another one."""
    return exported(tmp_path, "b.jsonl", [trial(1), trial(3)])


def taken(folder: Path, content: bytes) -> tuple[Added, dict[str, int]]:
    """What was added of a file, and the trials that are there then."""
    path = folder / "records"
    path.write_bytes(content)
    with Store.open(":memory:") as store:
        return import_records(store, path), queries.count_trials(store)


def refused(folder: Path, content: bytes) -> str:
    """Why a file was refused, of which nothing was added."""
    path = folder / "records"
    path.write_bytes(content)
    with Store.open(":memory:") as store:
        with pytest.raises(DatabaseError) as caught:
            import_records(store, path)
        assert not queries.targets(store) and not queries.count_trials(store)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text
    return text.removeprefix(str(path))


def test_lines_are_as_these_tests_count_them(first: str, second: str) -> None:
    assert first.count("\n") == second.count("\n") == LINES


FORMS: dict[str, Callable[[str, str], bytes]] = {
    "joined": lambda a, b: (a + b).encode(),
    "with blank lines": lambda a, b: f"\n{a}\n\n{b}\n \n".encode(),
    "with CRLF": lambda a, b: (a + b).replace("\n", "\r\n").encode(),
    "with byte order marks": lambda a, b: a.encode("utf-8-sig") + b.encode("utf-8-sig"),
    "without a last line's end": lambda a, b: (a + b).rstrip().encode(),
    "compressed": lambda a, b: gzip.compress((a + b).encode()),
    "compressed apart": lambda a, b: gzip.compress(a.encode()) + gzip.compress(b.encode()),
    "compressed and padded": lambda a, b: gzip.compress((a + b).encode()) + bytes(512),
    "cut within a member": lambda a, b: (
        gzip.compress((a + b[:100]).encode()) + gzip.compress(b[100:].encode())
    ),
    "of an older version behind": lambda a, b: f"{a}{as_of_version(3, b)}\n".encode(),
    "of an older version before": lambda a, b: f"{as_of_version(1, a)}\n{b}".encode(),
    "one of them twice": lambda a, b: (a + b + a).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_two_exports_in_one_file_are_taken(
    tmp_path: Path, first: str, second: str, form: str
) -> None:
    added, trials = taken(tmp_path, FORMS[form](first, second))
    assert trials == {"ok": 2, "crashed": 1}
    assert added.trials == 3
    assert added.known["trial"] == (3 if form == "one of them twice" else 1)
    assert added.new["target"] == added.new["workload"] == 1


def test_a_record_that_is_there_twice_is_taken_once(tmp_path: Path, first: str) -> None:
    lines = first.splitlines()
    lines.insert(4, lines[3])
    lines[-1] = json.dumps({"kind": "end", "records": LINES - 1})
    added, trials = taken(tmp_path, "\n".join(lines).encode())
    assert (added.trials, added.known["trial"]) == (2, 1)
    assert trials == {"ok": 1, "crashed": 1}


def edited(text: str, number: int, **changes: Any) -> str:
    """The text with other fields in a line, whose checksum is right."""
    lines = text.splitlines()
    value = {**json.loads(lines[number]), **changes}
    del value["checksum"]
    lines[number] = json.dumps({**value, "checksum": hash_json(value)})
    return "\n".join(lines) + "\n"


REFUSED: dict[str, tuple[Callable[[str, str], bytes], str]] = {
    "the second is newer": (
        lambda a, b: (a + NEWER + b).encode(),
        f":{LINES + 1}: version {VERSION + 1} is not supported, only 1 to {VERSION} "
        f"(a newer tunefarm has written it: update this one; head -n {LINES} gives the exports",
    ),
    "the first is newer": (
        lambda a, b: (NEWER + a).encode(),
        f":1: version {VERSION + 1} is not supported, only 1 to {VERSION}",
    ),
    "the first is cut off": (
        lambda a, b: ("".join(a.splitlines(True)[:-1]) + b).encode(),
        f":{LINES}: an export begins here, and the one above is cut off: it has no end",
    ),
    "the second is cut off": (
        lambda a, b: (a + "".join(b.splitlines(True)[:-1])).encode(),
        f":{2 * LINES - 1}: the export is cut off: it has no end behind this line (head -n {LINES}",
    ),
    "it is cut off within a line": (
        lambda a, b: (a + b)[: len(a) + 150].encode(),
        f":{LINES + 2}: the file is cut off within this line (head -n {LINES} gives",
    ),
    "a line of the second is wrong": (
        lambda a, b: (a + edited(b, 3, latency=-1.0)).encode(),
        f":{LINES + 4}: latency: -1.0 is not a number from",
    ),
    "the second refers to the first": (
        lambda a, b: (a + "".join(b.splitlines(True)[:1] + b.splitlines(True)[3:])).encode(),
        f":{LINES + 2}: ",
    ),
    "a record stands between": (
        lambda a, b: (a + a.splitlines(True)[1] + b).encode(),
        f":{LINES + 1}: this stands behind the end",
    ),
    "the gzip file is cut off": (
        lambda a, b: gzip.compress((a + b).encode())[:-30],
        "the gzip file is damaged or cut off behind this line",
    ),
    "the gzip file is damaged": (
        lambda a, b: gzip.compress(a.encode())[:-8] + bytes(8),
        "the gzip file is damaged or cut off behind this line",
    ),
    "text follows what is compressed": (
        lambda a, b: gzip.compress(a.encode()) + b.encode(),
        f":{LINES}: the gzip file is damaged or cut off behind this line",
    ),
    "a line is not JSON": (
        lambda a, b: a.replace('"kind"', "kind", 1).encode(),
        ":2: this is not JSON: Expecting property name",
    ),
    "it is UTF-16": (lambda a, b: a.encode("utf-16"), "it is a text file (UTF-16)"),
    "it is bzip2": (lambda a, b: bz2.compress(a.encode()), "it is a bzip2 file (bunzip2"),
    "it is a model": (lambda a, b: b"TUNEFARM" + bytes(9), "it is an artifact of tune build"),
    "it is blank": (lambda a, b: b"\n\n\n", ": there is no export in it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_right_is_refused_as_a_whole_with_its_line(
    tmp_path: Path, first: str, second: str, case: str
) -> None:
    content, reason = REFUSED[case]
    assert reason in refused(tmp_path, content(first, second))


def test_a_line_without_an_end_does_not_fill_memory(
    tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunefarm.db.export._LONGEST_LINE", 1 << 16)
    content = gzip.compress(first.encode() + b"[" * (1 << 17))
    assert f":{LINES}: a line behind this one has 65536 bytes or more" in refused(tmp_path, content)


def test_the_command_says_what_was_taken_and_what_was_known(
    tmp_path: Path, first: str, second: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, db = tmp_path / "both.jsonl", str(tmp_path / "tuning.db")
    path.write_text(first + second)
    assert run_command(app, ["db", "import", str(path), "--db", db]) == 0
    assert capsys.readouterr().out.startswith("3 new trials, 1 known already; ")
    assert run_command(app, ["db", "import", str(path), "--db", db]) == 0
    assert "0 new trials, 4 known already; " in capsys.readouterr().out


def test_a_refused_file_leaves_no_new_database(
    tmp_path: Path, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, db = tmp_path / "cut.jsonl", tmp_path / "tuning.db"
    path.write_text(first[:-30])
    assert run_command(app, ["db", "import", str(path), "--db", str(db)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not db.exists()


def test_an_import_that_is_broken_off_says_how_far_it_came(
    tmp_path: Path,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, db = tmp_path / "a.jsonl", str(tmp_path / "tuning.db")
    add = Store.add

    def interrupted(store: Store, records: Any, addition: int | None) -> int:
        if queries.workloads(store):
            raise KeyboardInterrupt
        return add(store, records, addition)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "add", interrupted)
        assert run_command(app, ["db", "import", str(path), "--db", db]) != 0
    said = capsys.readouterr().err
    assert "interrupted after 0 new trials, 0 known already; targets" in said
    assert " 2 new, " in said and "the same command adds the rest" in said
    assert run_command(app, ["db", "import", str(path), "--db", db]) == 0
    assert capsys.readouterr().out.startswith("2 new trials, 0 known already; ")
