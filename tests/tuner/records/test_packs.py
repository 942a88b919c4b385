"""Packs hold what a build applies, and nothing of one that is not what was written is added."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tuner.fleet import ELSEWHERE, Fleet
from tunefarm.configs.errors import DatabaseError, SettingsError
from tunefarm.db import queries
from tunefarm.db.additions import additions, roll_back
from tunefarm.db.check import check
from tunefarm.db.export import export_records, merge_records
from tunefarm.db.records import JobTask
from tunefarm.db.store import Store
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.records.packs import add_files, read_key, write_pack
from tunefarm.tuner.records.trials import record_to_apply

KEY = b"0123456789abcdef0123456789abcdef"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """A team's database of a model that another CPU has tuned, and an empty one."""
    fleet = Fleet(tmp_path)
    with fleet.store("team.db") as team:
        fleet.tune(team, ELSEWHERE)
        team.start_job("tiny.onnx", "hash", {}, [JobTask(fleet.key(w), 1) for w in fleet.kernels])
    return fleet


def packed(fleet: Fleet, name: str = "tiny.pack", key: bytes | None = None) -> Path:
    path = fleet.path / name
    with Store.open(fleet.path / "team.db", read_only=True) as team:
        write_pack(team, path, ["tiny.onnx"], (), key)
    return path


def test_a_pack_has_what_a_build_applies_and_no_job(fleet: Fleet) -> None:
    path = packed(fleet)
    with Store.open(fleet.path / "team.db") as team, Store.open(fleet.path / "mine.db") as mine:
        added = add_files(mine, path)
        assert added.trials > len(fleet.kernels)
        assert check(mine) == []
        assert queries.jobs(mine) == []
        for workload in fleet.kernels:
            theirs = record_to_apply(team, fleet.key(workload))
            ours = record_to_apply(mine, fleet.key(workload))
            assert theirs is not None and ours is not None
            assert ours[0].schedule == theirs[0].schedule and ours[1]
        (addition,) = additions(mine).values()
        assert (addition.kind, addition.source) == ("pack", str(path))


def test_records_of_a_pack_are_nominees_until_it_is_rolled_back(fleet: Fleet) -> None:
    with fleet.store():
        pass
    before, _ = fleet.build()
    path = packed(fleet)
    with fleet.store() as mine:
        add_files(mine, path)
    same, result = fleet.build()
    assert same == before
    assert {use.standing for use in result.report.kernels} == {"default, nominee left"}
    assert fleet.build(accept_nominees=True)[1].report.tuned_share == 1.0
    with fleet.store() as mine:
        roll_back(mine)
    again, result = fleet.build()
    assert again == before and result.unapplied == ()


def test_what_was_added_before_is_not_added_again(fleet: Fleet) -> None:
    """Nor merged again: verdicts of no job, which SQL tells apart, are the same once more."""
    path = packed(fleet)
    with fleet.store("mine.db") as mine:
        assert add_files(mine, path).new["best"]
        assert add_files(mine, path).new.total() == 0
        with fleet.store("other.db") as other:
            assert merge_records(other, mine).new["best"]
            assert merge_records(other, mine).new.total() == 0
        roll_back(mine)
        with pytest.raises(DatabaseError, match="nothing was imported"):
            roll_back(mine)
        assert not list(queries.iterate_trials(mine)) and not list(queries.iterate_bests(mine))


def test_the_same_records_make_the_same_pack(fleet: Fleet) -> None:
    assert packed(fleet, "a.pack").read_bytes() == packed(fleet, "b.pack").read_bytes()


def test_every_byte_of_a_pack_counts(fleet: Fleet) -> None:
    content = packed(fleet).read_bytes()
    with Store.open(fleet.path / "mine.db") as mine:
        for place in (5, len(content) // 2, len(content) - 1):
            broken = bytearray(content)
            broken[place] ^= 1
            path = fleet.path / "broken.pack"
            path.write_bytes(bytes(broken))
            with pytest.raises(DatabaseError, match=r"is not a pack|not what was written"):
                add_files(mine, path)
        path.write_bytes(content[:-7])
        with pytest.raises(DatabaseError, match="SHA-256 is not right"):
            add_files(mine, path)
        assert additions(mine) == {} and queries.count_trials(mine) == {}


def test_a_pack_is_added_with_its_key_alone(fleet: Fleet) -> None:
    signed, plain = packed(fleet, "signed.pack", KEY), packed(fleet, "plain.pack")
    header, _, body = signed.read_bytes().partition(b"\n")
    forged = fleet.path / "forged.pack"
    forged.write_bytes(
        json.dumps({**json.loads(header), "models": ["other"]}).encode() + b"\n" + body
    )
    with Store.open(fleet.path / "mine.db") as mine:
        for path, key, refused in (
            (signed, b"another key, as long as it is", "not signed with this key"),
            (plain, KEY, "is not signed"),
            (forged, KEY, "not signed with this key"),
        ):
            with pytest.raises(DatabaseError, match=refused):
                add_files(mine, path, key=key)
        assert queries.count_trials(mine) == {}
        assert add_files(mine, signed, key=KEY).trials


def test_a_folder_is_added_as_a_whole_or_not_at_all(fleet: Fleet) -> None:
    folder = fleet.path / "records"
    folder.mkdir()
    with pytest.raises(DatabaseError, match="has no file of records"), fleet.store() as mine:
        add_files(mine, folder)
    packed(fleet).rename(folder / "a.pack")
    with Fleet(fleet.path).store("third.db") as third:
        fleet.tune(third, "Third CPU")
        export_records(third, folder / "b.jsonl")
    (folder / "notes.txt").write_text("not records")
    (folder / "c.pack").write_bytes((folder / "a.pack").read_bytes()[:-1])
    with fleet.store() as mine:
        with pytest.raises(DatabaseError, match=r"c\.pack"):
            add_files(mine, folder)
        assert queries.count_trials(mine) == {}
        (folder / "c.pack").unlink()
        assert add_files(mine, folder).trials
        assert len(additions(mine)) == 1
        roll_back(mine)
        assert queries.count_trials(mine) == {}


def test_what_nothing_is_recorded_of_is_named(fleet: Fleet) -> None:
    with Store.open(fleet.path / "team.db", read_only=True) as team:
        with pytest.raises(DatabaseError, match=r"no job of other\.onnx .*tiny\.onnx"):
            write_pack(team, fleet.path / "x.pack", ["other.onnx"])
        with pytest.raises(DatabaseError, match="no record of these models for znver9"):
            write_pack(team, fleet.path / "x.pack", [], ["znver9"])
        write_pack(team, fleet.path / "x.pack", ["tiny"], [fleet.target.key])
        with pytest.raises(DatabaseError, match="exists already"):
            write_pack(team, fleet.path / "x.pack", [])


def test_a_key_must_be_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("short\n")
    with pytest.raises(SettingsError, match="too short for a key"):
        read_key(str(path))
    with pytest.raises(SettingsError, match="cannot read"):
        read_key(str(tmp_path / "none"))


def test_commands_pack_add_and_roll_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(fleet.path)
    Path("key").write_bytes(KEY)
    pack = ["db", "pack", "tiny.onnx", "--db", "team.db", "-o", "tiny.pack", "--key", "key"]
    assert run_command(app, pack) == 0
    out = capsys.readouterr().out
    assert "trials of 4 kernels" in out and "signed -> tiny.pack" in out
    assert run_command(app, ["db", "add", "tiny.pack", "--db", "mine.db"]) == 0
    printed = capsys.readouterr()
    assert "new trials" in printed.out and "tune verify MODEL --quick" in printed.out
    assert "signatures were not verified" in printed.err
    assert run_command(app, ["db", "why", "tiny.onnx", "--db", "mine.db"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("not measured on this CPU yet") == 4
    assert "next: tune verify tiny.onnx --db mine.db --quick" in printed.out
    assert run_command(app, ["db", "rollback", "--db", "mine.db"]) == 0
    assert "the pack of tiny.pack is undone" in capsys.readouterr().out
    assert run_command(app, ["db", "rollback", "--db", "mine.db"]) == 1
    assert "nothing was imported, merged or added" in capsys.readouterr().err
    assert run_command(app, ["db", "pack", "--db", "team.db"]) == 2
