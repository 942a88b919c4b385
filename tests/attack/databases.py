"""Attack on databases and exports: damage of every kind, then every command that reads.

What a command prints of a damaged file is what it printed of the whole one, or it fails with one
line, or it says what is damaged (`check`, `salvage`) and left out (`build`, `why`, `inspect`).
Anything else is a finding.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import math
import os
import pkgutil
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import onnx
import typer
from typer.main import get_command

from tests.attack.attack import Attack, Outcome
from tests.attack.forked import End, run_forked
from tests.end_to_end.tiny_model import tiny_model
from tunefarm import compiler, db, measure, tuner
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command

DATABASE, OTHER, MODEL, EXPORT = "tuning.db", "other.db", "tiny.onnx", "night.jsonl"
PAGE = 4096
SECONDS = 120.0

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "db list": ("db", "list", "--db", DATABASE, "--json", "-"),
    "db list (table)": ("db", "list", "--db", DATABASE),
    "db show": ("db", "show", "{workload}", "--db", DATABASE),
    "db builds": ("db", "builds", "--db", DATABASE),
    "db export": ("db", "export", "--db", DATABASE, "--output", "out.jsonl"),
    "db merge": ("db", "merge", DATABASE, "--db", OTHER),
    "db add": ("db", "add", DATABASE, "--db", OTHER),
    "db pack": ("db", "pack", "--db", DATABASE, "--output", "out.pack"),
    "db why": ("db", "why", MODEL, "--db", DATABASE, "--json", "-"),
    "db prune": ("db", "prune", "--db", DATABASE, "--keep", "4", "--dry-run"),
    "db check": ("db", "check", "--db", DATABASE, "--replay", "0"),
    "db salvage": ("db", "salvage", DATABASE, "--output", "saved.db"),
    "db upgrade": ("db", "upgrade", "--db", DATABASE),
    "report": ("report", "--db", DATABASE, "--html", "page.html"),
    "build": ("build", "--model", MODEL, "--db", DATABASE, "--output", "out.tuned", "--json", "-"),
    "inspect": ("inspect", "--model", MODEL, "--stage", "loops", "--db", DATABASE),
    "status": ("status", "--db", DATABASE, "--json", "-"),
    "jobs list": ("jobs", "list", "--db", DATABASE),
}
"""What reads a database, by the command that it is of; `bench` and `--model` read as `build` does.
"""
READ_OTHERWISE = {
    "db import": "reads an export, which is attacked too",
    "bench": "looks records up as build does, and measures",
    "run": "reads no database",
    "zoo": "reads no database",
    "generate": "reads no database",
    "db rollback": "deletes what db add and db merge have brought",
    "docs": "reads no database",
    **dict.fromkeys(("farm start", "farm join", "farm status", "farm stop"), "read no database"),
    "doctor": "says what is wrong with a database, and goes on",
    "verify": "looks records up as build does, and measures",
    "watch": "reads jobs as status does, for as long as they run",
    "stop": "finds its job as status does",
    "resume": "finds its job as status does, and tunes",
    "jobs add": "writes the queue, which jobs list reads",
    "jobs run": "reads the queue as jobs list does, and tunes",
    "jobs remove": "reads the queue as jobs list does",
}
_SLOW = ("build", "db why", "inspect")
_REPORTS_DAMAGE = ("db check", "db salvage")
_WRITTEN = ("out.jsonl", "out.pack", "page.html")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command did: its exit code, what it printed and the files that say the same."""

    code: int
    out: str
    err: str
    files: str


def reading_commands() -> set[str]:
    """Every command of the command line that takes a database, by its definition."""
    found = set()
    root = get_command(app)
    assert isinstance(root, typer.core.TyperGroup)
    for name, command in root.commands.items():
        below = getattr(command, "commands", None)
        found |= {f"{name} {inner}" for inner in below} if below else {name}
    return found


class DatabaseAttack(Attack):
    """Damages a database or an export, and reads it with commands."""

    name = "databases"
    commands_per_attempt = 4

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        _import_all()
        self._whole = folder / ".whole"
        self._whole.mkdir()
        self._workload = make_whole(self._whole)
        self._content = (self._whole / DATABASE).read_bytes()
        self._export = (self._whole / EXPORT).read_bytes()
        self._expected: dict[str, Answer] = {}

    def attempt(self, seed: int) -> Outcome:
        rng = random.Random(seed)
        if rng.random() < 0.15:
            return self._attack_import(rng)
        name, damage = rng.choice(DAMAGES)
        names = [name for name in COMMANDS if name not in _SLOW]
        chosen = rng.sample(names, self.commands_per_attempt)
        chosen += [rng.choice(_SLOW)] if rng.random() < 0.25 else []
        self._restore({})
        what = damage(self.folder / DATABASE, rng)
        damaged = {
            path.name: path.read_bytes() if path.exists() else None
            for path in (self.folder / DATABASE, *self.folder.glob(f"{DATABASE}-*"))
        }
        said = f"{name}: {what}"
        expected = [self.expected(command) for command in chosen]
        answers = self._answers(chosen, damaged)
        if isinstance(answers, str):
            return Outcome("traceback", True, f"{said}\none of {chosen}\n{answers}")
        for command, answer, right in zip(chosen, answers, expected, strict=True):
            problem = judge(command, answer, right)
            if problem:
                return Outcome("wrong", True, f"{said}\n{command}: {problem}\n{answer}\n{right}")
        held = {"same" if answer.code == 0 else "refused" for answer in answers}
        return Outcome(" and ".join(sorted(held)))

    def expected(self, command: str) -> Answer:
        """What the command does with the whole database."""
        if command not in self._expected:
            answers = self._answers([command], {})
            assert not isinstance(answers, str), answers
            assert answers[0].code == 0, answers
            self._expected[command] = answers[0]
        return self._expected[command]

    def _answers(
        self, commands: Sequence[str], changed: Mapping[str, bytes | None]
    ) -> list[Answer] | str:
        """What each of the commands does with the files; text where one ends as none should."""
        filled = [
            [part.format(workload=self._workload) for part in COMMANDS[name]] for name in commands
        ]
        return _run(self.folder, filled, _WRITTEN, lambda: self._restore(changed))

    def _restore(self, changed: Mapping[str, bytes | None]) -> None:
        """The whole files, but for those that are changed (None: not there)."""
        for path in self.folder.iterdir():
            if not path.name.startswith("."):
                path.unlink()
        for path in self._whole.iterdir():
            shutil.copyfile(path, self.folder / path.name)
        for name, content in changed.items():
            (self.folder / name).unlink(missing_ok=True)
            if content is not None:
                (self.folder / name).write_bytes(content)

    def _attack_import(self, rng: random.Random) -> Outcome:
        self._restore({})
        path = self.folder / EXPORT
        path.write_bytes(mutated_lines(self._export, rng))
        commands = (
            ("db", "import", EXPORT, "--db", "new.db"),
            ("db", "export", "--db", "new.db", "--output", "o.jsonl"),
        )
        answers = _run(self.folder, commands, ("o.jsonl",))
        if isinstance(answers, str):
            changed = _different(self._export, path)
            return Outcome("traceback", True, f"import of\n{changed}{answers}")
        answer, exported = answers
        assert exported.code == 0 or (answer.code and "no such database" in exported.err), exported
        lines = set(exported.files.splitlines()[1:-1])
        whole = set(self._export.decode().splitlines()[1:-1])
        if not lines <= whole or (answer.code and lines) or (not answer.code and lines != whole):
            return Outcome("wrong", True, f"import took\n{sorted(lines - whole)}\n{answer}")
        problem = "" if answer.code == 0 else _no_refusal(answer)
        if problem:
            return Outcome("wrong", True, f"import: {problem}\n{answer}")
        return Outcome("import refused" if answer.code else "import same")


def judge(command: str, answer: Answer, expected: Answer) -> str:
    """What is wrong with an answer about a damaged database; "" if nothing."""
    if answer.code == 0:
        if command == "db salvage":
            return "" if "saved" in answer.out else "it does not say what was saved"
        same = (answer.out, answer.files) == (expected.out, expected.files)
        same |= "damaged and left out" in answer.out + answer.err
        return "" if same else "it answers otherwise, and does not say why"
    if command == "db check" and answer.out and not answer.err:
        return ""
    return _no_refusal(answer)


def _no_refusal(answer: Answer) -> str:
    lines = answer.err.splitlines()
    if answer.code != 1 or not lines or not lines[-1].startswith("error: "):
        return f"exit code {answer.code} without an error"
    if len(lines) != 1 or "unexpected" in answer.err or "Traceback" in answer.err:
        return "it fails, but not with one line"
    return ""


def _run(
    folder: Path,
    commands: Sequence[Sequence[str]],
    written: Sequence[str] = (),
    before_each: Callable[[], None] = lambda: None,
) -> list[Answer] | str:
    """Run commands in one fork, one after the other."""
    built = get_command(app)

    def call() -> str:
        gc.disable()  # it would look through all that was imported
        os.chdir(folder)
        setattr(typer.main, "get_command", lambda _: built)  # noqa: B010 - made once for all forks
        answers = []
        for command in commands:
            before_each()
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run_command(app, list(command))
            there = (Path(name) for name in written if Path(name).exists())
            files = [path.read_text(errors="backslashreplace") for path in there]
            answers.append([code, out.getvalue(), err.getvalue(), "\n".join(files)])
        return json.dumps(answers)

    ended = run_forked(call, seconds=SECONDS)
    if ended.end is not End.RETURNED:
        return f"{ended.end}: {ended.text}"
    return [Answer(*answer) for answer in json.loads(ended.text)]


def _import_all() -> None:
    """Import what commands import when they run: here, once for all forks."""
    for package in (compiler, db, measure, tuner):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith((".env", ".ray_runner", "__main__")):
                importlib.import_module(module.name)


def make_whole(folder: Path) -> str:
    """A tuned model, its database, an empty one and an export; the key of a workload."""
    onnx.save(tiny_model(), folder / MODEL)
    tune = ("--model", MODEL, "--db", DATABASE, "--config", "ci", "--runner", "local")
    build = ("build", "--model", MODEL, "--db", DATABASE, "--output", "first.tuned", "--json", "-")
    commands = [
        tune,
        (*tune, "--trials", "24"),
        build,
        ("db", "export", "--db", DATABASE, "--output", EXPORT),
        ("db", "list", "--db", DATABASE, "--json", "-"),
    ]
    answers = _run(folder, commands)
    assert not isinstance(answers, str), answers
    assert not any(answer.code for answer in answers), answers
    (folder / "first.tuned").unlink()
    with closing(sqlite3.connect(folder / OTHER)):
        pass  # an empty file becomes a database
    return str(json.loads(answers[-1].out)[0]["workload"])


def _different(whole: bytes, path: Path) -> str:
    lines = path.read_bytes().splitlines()
    return "".join(
        f"{a!r}\n{b!r}\n" for a, b in zip(whole.splitlines(), lines, strict=False) if a != b
    )[:2000]


def _flip_bits(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    places = [rng.randrange(len(content)) for _ in range(rng.choice((1, 1, 1, 2, 8)))]
    for place in places:
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"bits at {places}"


def _change_bytes(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    start, length = rng.randrange(len(content)), rng.choice((1, 2, 8, 64))
    content[start : start + length] = rng.randbytes(len(content[start : start + length]))
    path.write_bytes(content)
    return f"{length} bytes at {start}"


def _change_text(path: Path, rng: random.Random) -> str:
    """A digit or a letter becomes another one."""
    content = bytearray(path.read_bytes())
    place = rng.choice([found.start() for found in re.finditer(rb"[0-9a-z]", content)])
    content[place] = rng.choice(b"0123456789abcxyz\"[]{}'<\x1b\x00\xff")
    path.write_bytes(content)
    return f"character at {place}"


def _zero_page(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    start = PAGE * rng.randrange(len(content) // PAGE)
    content[start : start + PAGE] = bytes(PAGE)
    path.write_bytes(content)
    return f"page at {start}"


def _swap_pages(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    one, two = (PAGE * n for n in rng.sample(range(len(content) // PAGE), 2))
    first, second = content[one : one + PAGE], content[two : two + PAGE]
    content[one : one + PAGE], content[two : two + PAGE] = second, first
    path.write_bytes(content)
    return f"pages at {one} and {two}"


def _truncate(path: Path, rng: random.Random) -> str:
    size = path.stat().st_size
    left = rng.choice((0, 1, 100, 512, size - 1, PAGE, rng.randrange(size)))
    os.truncate(path, left)
    return f"to {left} bytes"


def _edit_cell(path: Path, rng: random.Random) -> str:
    """A value becomes another one through SQLite: the structure stays right."""
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        tables = [row[0].decode() for row in connection.execute(_TABLES)]
        counts = {t: connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables}
        table = rng.choice([table for table in tables if counts[table]])
        columns = [row[1].decode() for row in connection.execute(f"PRAGMA table_info({table})")]
        column = rng.choice([column for column in columns if column != "id"])
        rowids = [row[0] for row in connection.execute(f"SELECT rowid FROM {table}")]
        rowid = rng.choice(rowids)
        (old,) = connection.execute(
            f"SELECT {column} FROM {table} WHERE rowid = ?", (rowid,)
        ).fetchone()
        value = _other_value(old, rng)
        with contextlib.suppress(sqlite3.IntegrityError, OverflowError), connection:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, rowid))
    return f"{table}.{column} of {rowid}: {old!r} to {value!r}"[:300]


_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"


def _other_value(old: object, rng: random.Random) -> object:
    values: list[object] = [
        *(None, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 1e300, -1e300, math.inf, 0.5, 1e12),
        *("", "x", "ok", "9" * 5000, "NaN", "[" * 3000, "\x1b[2J", "<script>", b"", b"\xff\xfe"),
    ]
    if isinstance(old, int | float):
        values += [old + 1, old * 2, -old, float(old) + 0.5, str(old), repr(old).encode()] * 3
    if isinstance(old, bytes) and old:
        place = rng.randrange(len(old))
        changed = old[:place] + bytes([old[place] ^ 1 << rng.randrange(7)]) + old[place + 1 :]
        texts = [changed.decode(errors="replace"), old[:-1].decode(errors="replace"), changed]
        values += texts * 6
    return rng.choice(values)


def _drop(path: Path, rng: random.Random) -> str:
    with closing(sqlite3.connect(path)) as connection, connection:
        names = connection.execute(
            "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'index')"
            " AND name NOT LIKE 'sqlite%'"
        ).fetchall()
        kind, name = rng.choice(names)
        connection.execute(f"DROP {kind} {name}")
    return f"{kind} {name}"


def _edit_schema(path: Path, rng: random.Random) -> str:
    """A character of what a table or an index is made with becomes another one."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        rows = connection.execute("SELECT rowid, sql FROM sqlite_master WHERE sql NOT NULL")
        rowid, sql = rng.choice(rows.fetchall())
        place = rng.randrange(len(sql))
        changed = sql[:place] + rng.choice("abcxyz01,() '") + sql[place + 1 :]
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE rowid = ?", (changed, rowid))
    return f"{sql[max(0, place - 20) : place + 20]!r} at {place}: {changed[place]!r}"


def _put_beside(path: Path, rng: random.Random) -> str:
    """A journal or a log that is not this database's."""
    suffix = rng.choice(("-journal", "-wal", "-shm"))
    content = rng.choice(
        (b"", rng.randbytes(5000), bytes(3000), path.read_bytes(), b"\xd9\xd5\x05\xf9 \xa1c\xd7")
    )
    path.with_name(path.name + suffix).write_bytes(content)
    return f"{suffix} of {len(content)} bytes"


Damage = Callable[[Path, random.Random], str]
DAMAGES: Sequence[tuple[str, Damage]] = (
    *[("flipped bits", _flip_bits)] * 4,
    *[("changed bytes", _change_bytes)] * 3,
    *[("changed text", _change_text)] * 3,
    *[("an edited cell", _edit_cell)] * 5,
    ("a zeroed page", _zero_page),
    ("swapped pages", _swap_pages),
    ("a cut file", _truncate),
    ("a dropped index or table", _drop),
    ("an edited schema", _edit_schema),
    ("a file beside it", _put_beside),
)


def mutated_lines(content: bytes, rng: random.Random) -> bytes:
    """An export with something changed: a character, a line, the end."""
    lines = content.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, rng.choice(lines))
        case 2:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            return content[: rng.randrange(len(content))]
        case 4:
            digits = [found.start() for found in re.finditer(rb"[0-9]", content)]
            place = rng.choice(digits)
            return (
                content[:place] + rng.choice((b"9", b"-", b"1e999", b"\xff")) + content[place + 1 :]
            )
        case _:
            changed = bytearray(content)
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
    return b"".join(lines)
