"""Every command that takes a database takes a server's, and prints no password."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from sqlalchemy.engine import make_url

from tests.db.postgresql import PASSWORD, Server
from tests.end_to_end.test_cli import CommandLine, trials_in
from tests.end_to_end.tiny_model import tiny_model
from tunefarm.db import queries
from tunefarm.db.store import Store

TUNING = ("--config", "ci", "--runner", "local")


class Discreet(CommandLine):
    """Commands that succeed and print no password, unless it was typed as part of `--db`."""

    def run(self, *arguments: str | Path) -> str:
        result = self(*arguments)
        assert result.code == 0, result
        for line in (result.out + result.err).splitlines():
            assert line.startswith("next: ") or not tells(line)
        return str(result.out)


def tells(text: str) -> bool:
    return any(part in text for part in (PASSWORD, "sesame", "1%402", "1@2"))


@pytest.fixture
def tune(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Discreet:
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    return Discreet(tmp_path, capsys)


@pytest.mark.nightly
def test_tuned_on_a_server_and_built_from_it(tune: Discreet, postgresql_url: str) -> None:
    db = "--db", postgresql_url
    first = tune.run("--model", "tiny.onnx", *db, *TUNING)
    assert "next: tune build" in first and "--db" in first
    again = json.loads(tune.run("--model", "tiny.onnx", *db, *TUNING, "--json", "-"))
    assert again["measured"] == 0
    assert again["database"] == make_url(postgresql_url).render_as_string()
    tune.run("build", "--model", "tiny.onnx", *db, "--output", "t", "--require-tuned", "1.0")
    tune.run("report", *db, "--html", "page.html")
    assert not tells(Path("page.html").read_text())
    with Store.open(postgresql_url, read_only=True) as store:
        assert not any(tells(json.dumps(job.settings)) for job in queries.jobs(store))


def test_password_of_a_settings_file_is_never_printed(
    tune: Discreet, postgresql_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "farm.toml"
    preset = (Path(__file__).resolve().parents[2] / "configs" / "ci.toml").read_text()
    brief = preset.replace("trials_per_task = 6", "trials_per_task = 1")
    file.write_text(f'{brief}\n[database]\nurl = "{postgresql_url}"\n')
    printed = tune.run("--model", "tiny.onnx", "--config", "farm.toml", "--runner", "local")
    assert "next: tune build tiny.onnx" in printed
    assert "--config farm.toml" in printed
    assert not tells(printed)


@pytest.mark.nightly
def test_database_commands(tune: Discreet, postgresql: Server, postgresql_url: str) -> None:
    tune.run("--model", "tiny.onnx", "--db", "file.db", *TUNING)
    count = trials_in(Path("file.db"))
    db = "--db", postgresql_url
    assert f"{count} new trials" in tune.run("db", "merge", "file.db", *db)
    listed = json.loads(tune.run("db", "list", *db, "--json", "-"))
    assert sum(task["trials"] for task in listed) == count
    assert "a build uses record" in tune.run("db", "show", listed[0]["workload"], *db)
    checked = tune.run("db", "check", *db, "--replay", "3")
    assert "no problems" in checked and "3 rebuilt, 3 run" in checked
    assert "has schema" in tune.run("db", "upgrade", *db)
    tune.run("db", "export", *db, "--output", "records.jsonl")
    assert not tells(Path("records.jsonl").read_text())
    with postgresql.database() as name:
        other = postgresql.url(name)
        assert f"{count} new trials" in tune.run("db", "import", "records.jsonl", "--db", other)
        assert "0 new trials" in tune.run("db", "merge", other, *db)
        assert "0 new trials" in tune.run("db", "merge", other, "--db", "file.db")
    planned = tune.run("db", "prune", *db, "--keep", "2", "--dry-run")
    assert "would be deleted" in planned
    assert "trials deleted" in tune.run("db", "prune", *db, "--keep", "2")
    left = json.loads(tune.run("db", "list", *db, "--json", "-"))
    assert sum(task["trials"] for task in left) < count
    line = tune.refuses("db", "merge", postgresql_url, *db)
    assert "is the database itself" in line and not tells(line)


@pytest.mark.parametrize(
    "command",
    [
        ("--model", "tiny.onnx"),
        ("build", "--model", "tiny.onnx", "--output", "t"),
        ("report", "--html", "page.html"),
        ("db", "list"),
        ("db", "check"),
        ("db", "prune"),
    ],
)
def test_server_that_lets_nobody_in_is_one_line(
    tune: Discreet, postgresql: Server, command: tuple[str, ...]
) -> None:
    line = tune.refuses(*command, "--db", postgresql.url("postgres", password="wrong sesame"))
    assert "password authentication failed" in line
    assert not tells(line)
