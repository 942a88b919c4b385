"""Wrong invocations of every command, with every option that the command line defines.

A command that would work gets one fault, drawn for a parameter of its definition: a value that
cannot be, a file that is something else, an output that is an input, a setting in the environment
that is none. Each must be refused in one line that starts with "error:", and change nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import typer

from tests.attack.attack import Attack, Outcome
from tests.attack.campaign import empty
from tests.attack.forked import End, run_forked
from tests.end_to_end.tiny_model import tiny_model
from tunefarm.configs.temporary_folders import leave
from tunefarm.tuner.commands import verbosity
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 180.0
_BUG = "error: unexpected "
_REAL = 0.04  # share of attempts that start an interpreter
_LONG = "x" * 5000
_NAMES = ("", "a\0b", _LONG, "m.onnx/x", "fifo", "/dev/full", ".", "loop", "no folder/x", "a\nb/x")
_FILES = {
    "m.onnx": "model",
    "a.tuned": "artifact",
    "s.db": "database",
    "records.jsonl": "records",
    "c.toml": "config",
}
_OTHERS = ("missing", "text", "empty", "\udcff", "folder", *_NAMES, *_FILES)
_CONFIGS = (
    b"[", b"\xff", b"[search]\ntrial = 1", b"search = 1", b"[search]\nminutes = nan",
    b"[compile]\nthreads = 'x'", b"a = " + b"[" * 3000, b"x = 1" + b"0" * 5000, b"\0",
    b"[compile]\ntarget = 'nothing'", b"[compile]\ntarget = 'fifo'", b"[database]\nurl = ''",
)  # fmt: skip
_VARIABLES = (
    ("SEARCH__TRIAL", "1"), ("SEARCH", "1"), ("COMPILE__THREADS", "x"), ("", "1"), ("__", "1"),
    ("SEARCH__MINUTES", "nan"), ("COMPILE__TARGET", "nothing"), ("MEASURE__SLOTS", "[[["),
    ("SEARCH__SEED", "-1"), ("COMPILE__THREADS", "1e400"), ("SEARCH__COST_MODEL__X__Y", "\udcff"),
)  # fmt: skip
_WORDS = {
    "name": ("resnet81", "", "\udcff", _LONG),
    "workload": ("nothing", "%", "\udcff", _LONG),
    "kernel": ("softmx", "\0", "\udcff", _LONG),
    "stage": ("kernel", "", "\udcff", _LONG),
    "dump_after": ("loop", "", "\udcff", _LONG),
    "form": ("qqd", "", "\udcff", _LONG),
    "numerics": ("bf61", "", "BF16", "\udcff", _LONG),
    "precision": ("bf61", "", "BF16", "\udcff", _LONG),
    "check": ("", "onnxruntim", "missing.py:f", "\udcff", _LONG),
    "denormals": ("flash", "", "KEEP", "\udcff", _LONG),
    "calibration": ("", "missing", "folder", "\udcff", _LONG),  # all are wrong without int8 or auto
    "bench": ("", "missing", "folder", "\udcff", _LONG),
    "calibration_method": ("", "entropy", "percentile:x", "\udcff", _LONG),
    "metric": ("", "x.py", "x.py:f", ":f", "\udcff", _LONG),
    "labels": ("", "missing", "\udcff", _LONG),
    "emit": ("objct", "", "\udcff", _LONG),
    "against": ("onnxruntim", "", ",", "\udcff", _LONG),
    "runner": ("rya", "", "replay", "\udcff", _LONG),
    "address": ("", "host", "host:x", "127.0.0.1:1", "no-such-host.invalid:1", "a\0:1", "\udcff:1"),
    "machine": ("", "missing", "m.onnx", "folder", "text", "\udcff", _LONG),
    "cc": ("", "no-such-cc", "missing", "folder", "\udcff", _LONG),
    "functions": ("", "missing", "missing.py", "folder", "no_such_module", "\udcff", "a.b", _LONG),
    "targets": ("", ",", "x86-64-v3,", "x86-64-v9", "x86-64-v3,x86-64-v3", "a" * 5000),
    "shape": ("", "x", "x=", "=1", "x=0", "x=a", "x=1,,2", "x=-1", "none=1", "x=" + "9" * 5000),
    "job": ("", "nothing", "\udcff", _LONG),
    "page": ("nothing", "../index", "\udcff", _LONG),
    "build": ("m.onnx", "m.onnx/x", _LONG),
    "threads": ("", "x", "0", "-1", "1" + "0" * 5000),
    "max_memory": ("", "lots", "0", "-3", "64X", "1e9999M", "nan", "\udcff", _LONG),
    "ids": ("nothing", "\udcff", _LONG),
    "layers": ("missing", "m.onnx", "folder", "\udcff", _LONG),
    "prompt_ids": ("", "x", "1,", ",", "-1", "\udcff", _LONG),
    "prompt": ("", "x", "\udcff", _LONG),
    "tokenizer": ("", "missing", "folder", "\udcff", _LONG),
    "stop": ("", "x", "\udcff", _LONG),
    "generate": ("", "x", "1", "1,x", ",", "\udcff", _LONG),
    "inputs": ("", "missing", "folder", "\udcff", _LONG),
    "models": ("nothing", "\udcff", _LONG),
    "key": ("missing", "folder", "\udcff", _LONG),
    "source": ("", "missing", "m.onnx", "text", "\udcff", _LONG),
    "until": ("", "25:00", "7", "2020-01-01", "\udcff", _LONG),
    "input": ("", "x", "x=", "=x.npy", "none=x.npy", *(f"x={name}" for name in _OTHERS if name)),
}
_VALID = {
    "name": "mlp", "workload": "0", "kernel": "softmax", "stage": "kernels", "emit": "artifact",
    "against": "onnxruntime", "runner": "local", "shape": "x=1,3,12,12",
    "targets": "x86-64-v2,x86-64-v3", "cc": "cc", "input": "x=x.npy",
    "model": "m.onnx", "artifact": "a.tuned", "db": "s.db", "other": "s.db", "config": "c.toml",
    "output": "new", "json": "new.json", "html": "new.html", "job": "nothing",
    "source": "records.jsonl",
}  # fmt: skip
_OUTPUTS = ("output", "json", "json_progress", "html")
_READ = ("model", "artifact", "parent", "file", "other", "db", "config")
_CREATES = (
    "tune",
    "jobs add",
    "db import",
    "db merge",
    "db add",
)  # a database that is not there yet
_LEFT_OUT = ("farm", "doctor")
"""Commands that start Ray, or measure whatever is wrong and say so; their own tests refuse."""
_KINDS_READ = {
    "model": "model",
    "artifact": "artifact",
    "parent": "artifact",
    "other": "database",
    "db": "database",
}


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command line that is wrong, and the state of the process in which it is."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    config: bytes = b""
    stdout: str = ""  # "full" or "closed"

    def __str__(self) -> str:
        parts = [*(f"{name}={value!a}" for name, value in self.variables.items()), "tune"]
        parts += [argument[:80].encode("unicode_escape").decode() for argument in self.arguments]
        notes = [f"c.toml: {self.config[:80]!r}"] if self.config else []
        notes += [f"stdout is {self.stdout}"] if self.stdout else []
        return "\n".join([" ".join(parts), *notes])


@cache
def commands() -> dict[str, list[Any]]:
    """The parameters of every command by its name, from the command line's own definition."""
    found: dict[str, list[Any]] = {}

    def walk(command: Any, path: tuple[str, ...]) -> None:
        inner = getattr(command, "commands", {})
        if not inner or command.invoke_without_command:
            found[" ".join(path) or "tune"] = command.params
        for name, one in inner.items():
            if name not in _LEFT_OUT:
                walk(one, (*path, name))

    walk(typer.main.get_command(app), ())
    return found


def draw(rng: random.Random) -> Invocation:
    """A wrong invocation."""
    defined = commands()
    name = rng.choice(sorted(defined))
    kind = rng.random()
    if kind < 0.06:
        return _unwritable(rng)
    if kind < 0.16:
        name = rng.choice(["tune", "build", "bench", "inspect"])
        needed = ("model", "output", "stage")  # what else is given would be put over the settings
        values = {k: v for k, v in _valid(rng, name, defined[name]).items() if k in needed}
        if kind < 0.11:
            values["config"] = "c.toml"
            return Invocation(_line(name, defined[name], values), config=rng.choice(_CONFIGS))
        variable, value = rng.choice(_VARIABLES)
        arguments = _line(name, defined[name], values)
        return Invocation(arguments, {f"TUNEFARM_{variable}": value})
    parameters = defined[name]
    values = _valid(rng, name, parameters)
    if kind < 0.28:
        return Invocation(_misspelt(rng, name, parameters, values))
    parameter = rng.choice(parameters)
    if parameter.is_flag if hasattr(parameter, "is_flag") else False:
        return Invocation((*_line(name, parameters, values), f"{parameter.opts[0]}=x"))
    wrong = list(faults(name, parameter))
    if parameter.name in _OUTPUTS:
        read = [*values.values(), *(["soft"] if "model" in values else [])]
        wrong = [one for one in wrong if one not in {*_FILES, "soft"} or one in read]
    fault = rng.choice(wrong)
    if parameter.name == "address":
        values.pop("runner", None)  # the local one needs no address
    values[parameter.name] = fault
    return Invocation(_line(name, parameters, values))


def faults(command: str, parameter: Any) -> Iterator[str]:
    """Values that are wrong for a parameter. KeyError for one that has no faults here yet."""
    annotation, name = parameter.type_descriptor.annotation, parameter.name
    if annotation in (int, float):
        yield from ("", "x", "1x", "--", "\udcff", "1" + "0" * 5000 + "x")
        if parameter.min is not None:
            yield from (str(parameter.min - 1), "-1e9" if annotation is float else "-1000000000")
        if parameter.max is not None:
            yield from (str(parameter.max + 1), "nan", "inf")
    elif name in _OUTPUTS:
        yield from (*_NAMES, *_FILES, "hard", "soft", "folder/../s.db", "s.db-journal", "s.db-wal")
    elif name in _READ:
        right = _KINDS_READ.get(name, "records" if command == "db import" else "")
        right = "config" if name == "config" else right
        wrong = [other for other in _OTHERS if _FILES.get(other) != right]
        if name == "config":
            wrong.remove("empty")  # no settings are settings
        if (name == "db" and command in _CREATES) or (name, command) == ("db", "db upgrade"):
            wrong = [one for one in wrong if one not in ("missing", "empty", "\udcff")]
        if command == "db salvage":
            wrong = ["missing", *(one for one in _NAMES if one)]
        yield from wrong
    else:
        yield from _WORDS[name]


def _valid(rng: random.Random, command: str, parameters: list[Any]) -> dict[str, str]:
    """Values with which the command would work: what it needs, and some of the rest."""
    values = {}
    for parameter in parameters:
        name = parameter.name
        wanted = parameter.required or name in ("model", "db", "runner")
        if name == "file":
            values[name] = "records.jsonl" if command == "db import" else "s.db"
        elif name in _VALID and (wanted or (name != "kernel" and rng.random() < 0.2)):
            values[name] = _VALID[name]
        elif name in ("trials", "minutes", "rounds"):
            values[name] = "3"
    return values


def _line(command: str, parameters: list[Any], values: Mapping[str, str]) -> tuple[str, ...]:
    line = [] if command == "tune" else command.split()
    for parameter in parameters:
        if parameter.name not in values:
            continue
        value = values[parameter.name]
        if parameter.opts and parameter.opts[0].startswith("-"):
            line.append(f"{parameter.opts[0]}={value}")
        else:
            line += ["--", value] if value.startswith("-") else [value]
    return tuple(line)


def _misspelt(
    rng: random.Random, name: str, parameters: list[Any], values: dict[str, str]
) -> tuple[str, ...]:
    """An option that there is not, one without its value, or one that is needed and not there."""
    line = _line(name, parameters, values)
    options = [one for one in parameters if one.opts and one.opts[0].startswith("-")]
    needed = [one.name for one in parameters if one.required]
    way = rng.randrange(4)
    if way == 0 and needed:
        return _line(name, parameters, {k: v for k, v in values.items() if k != needed[-1]})
    if way == 1:
        return (*line, rng.choice(options).opts[0] + rng.choice("xyz"))
    if way == 2:
        return (*line, rng.choice(["extra", "", "\udcff", "a\nb", _LONG]), "another")
    valued = [one for one in options if not one.is_flag]
    return (*line, rng.choice(valued).opts[0]) if valued else (*line, "--none")


def _unwritable(rng: random.Random) -> Invocation:
    line = rng.choice(
        ["--help", "db list --db s.db", "db check --db s.db --replay 0", "run a.tuned", "db --help",
         "inspect --model m.onnx --stage loops", "build --help", "db list --db s.db --json -"]
    )  # fmt: skip
    return Invocation(tuple(line.split()), stdout=rng.choice(["full", "closed"]))


class InvocationsAttack(Attack):
    """Runs wrong command lines in forks of a process that has imported everything."""

    name = "invocations"

    def __init__(
        self, folder: Path, run: Callable[[list[str]], int] = lambda line: run_command(app, line)
    ) -> None:
        super().__init__(folder)
        self.run = run
        self._common = folder / ".common"
        self._common.mkdir()
        self._work, self._temporary = folder / "work", folder / "tmp"
        with contextlib.chdir(self._common):
            _make_inputs()
        import tunefarm.tuner.job  # noqa: F401 - forks have it

    def attempt(self, seed: int) -> Outcome:
        rng = random.Random(seed)
        invocation = draw(rng)
        return self.invoke(invocation, real=rng.random() < _REAL)

    def minimise(self, seed: int, outcome: Outcome) -> str:
        """Fewer options that are refused as badly; what is not refused at all stays as it is."""
        invocation = draw(random.Random(seed))
        problems = _problems_of(invocation, outcome)
        if "exit code 0" in problems:
            return ""
        for argument in invocation.arguments:
            rest = tuple(other for other in invocation.arguments if other is not argument)
            fewer = replace(invocation, arguments=rest)
            empty(self.folder)
            if _problems_of(fewer, self.invoke(fewer)) == problems:
                invocation = fewer
        return str(invocation)

    def invoke(self, invocation: Invocation, *, real: bool = False) -> Outcome:
        """Run a wrong command line; anything but a refusal that changes nothing is a finding."""
        shutil.copytree(self._common, self._work)
        _make_traps(self._work)
        self._temporary.mkdir()
        if invocation.config:
            (self._work / "c.toml").write_bytes(invocation.config)
        before = _state(self._work)
        texts = (*invocation.arguments, *invocation.variables.values())
        real = real and not any("\0" in text for text in texts)
        ended = self._in_a_process(invocation) if real else self._in_a_fork(invocation)
        problems = ended if isinstance(ended, list) else _wrong(*ended)
        after = _state(self._work)
        changed = sorted(name for name in before | after if before.get(name) != after.get(name))
        problems += [f"changed or left: {name}" for name in changed]
        problems += [f"left: {path}" for path in self._temporary.iterdir()]
        if problems:
            return Outcome(
                "not refused", broke=True, detail="\n".join([str(invocation), *problems])
            )
        return Outcome("refused by a process" if real else "refused")

    def _in_a_fork(self, invocation: Invocation) -> tuple[int, str] | list[str]:
        def run() -> str:
            os.chdir(self._work)
            os.environ.update(invocation.variables)
            os.environ["XDG_CACHE_HOME"] = str(self._common.parent / ".cache")
            tempfile.tempdir = str(self._temporary)
            errors = os.open(self.folder / "stderr", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
            os.dup2(errors, 2)
            if invocation.stdout == "full":
                os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
            elif invocation.stdout:
                os.close(1)
            verbosity.prepare_streams()
            code = self.run(list(invocation.arguments))
            leave()
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            return json.dumps([code, (self.folder / "stderr").read_text(errors="replace")])

        forked = run_forked(run, seconds=_SECONDS)
        if forked.end is not End.RETURNED:
            return [f"{forked.end}: {forked.text}"]
        code, text = json.loads(forked.text)
        return code, text

    def _in_a_process(self, invocation: Invocation) -> tuple[int, str] | list[str]:
        changed = {"TMPDIR": str(self._temporary)}
        caches = {"XDG_CACHE_HOME": str(self._common.parent / ".cache")}
        script = 'exec "$@"' + {"full": " > /dev/full", "closed": " >&-"}.get(invocation.stdout, "")
        entry = [sys.executable, "-m", "tunefarm.tuner.commands.entry", *invocation.arguments]
        try:
            ran = subprocess.run(
                ["/bin/sh", "-c", script, "sh", *entry],
                cwd=self._work,
                env={**os.environ, **changed, **caches, **invocation.variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ["hung"]
        return ran.returncode, ran.stderr.decode(errors="replace")


def _problems_of(invocation: Invocation, outcome: Outcome) -> list[str]:
    """What an outcome says beside the invocation."""
    return outcome.detail.splitlines()[len(str(invocation).splitlines()) :]


def _wrong(code: int, text: str) -> list[str]:
    """What is wrong with how a refusal looks."""
    problems = [] if code in (1, 2) else [f"exit code {code}"]
    lines = text.splitlines()
    if len(lines) != 1 or not lines[0].startswith("error: ") or _BUG in text:
        problems.append(f"stderr: {text[:3000]}")
    return problems


def _make_inputs() -> None:
    """What commands read, into the working folder."""
    from tunefarm.db.export import export_records
    from tunefarm.db.store import Store

    onnx.save(tiny_model(), "m.onnx")
    with Store.open("s.db") as store:
        export_records(store, Path("records.jsonl"))
    np.save("x.npy", np.zeros((1, 3, 12, 12), np.float32))
    Path("c.toml").write_text("[search]\ntotal_trials = 3\n")
    Path("text").write_text("a text\n")
    Path("empty").touch()
    Path("folder").mkdir()
    if run_command(app, "build --model m.onnx --untuned --output a.tuned".split()):
        raise RuntimeError("the tiny model cannot be built")


def _make_traps(work: Path) -> None:
    """Names that are not what they seem; a copy would not keep them."""
    os.mkfifo(work / "fifo")
    os.symlink("loop", work / "loop")
    os.link(work / "s.db", work / "hard")
    os.symlink("m.onnx", work / "soft")


def _state(work: Path) -> dict[str, object]:
    """Every name below a folder, with contents where it has some."""
    found: dict[str, object] = {}
    for path in work.rglob("*"):
        is_file = path.is_file() and not path.is_symlink()
        name = str(path.relative_to(work))
        found[name] = path.read_bytes() if is_file else path.lstat().st_mode
    return found
