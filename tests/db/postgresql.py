"""A PostgreSQL server for the tests: Debian's, on loopback, in a temporary folder of its own.

The server belongs to a shell that waits for the end of its input, which is the end of the process
that started it, however that comes about; then it stops the server and deletes the folder.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL

REQUIRED = "REQUIRE_POSTGRESQL"
"""With this variable in the environment, tests fail where there is no server to start."""
PASSWORD = "open sesame: 1@2/3"
USER = "tuner"
_TRIES = 5  # another process may take a port between its choice and its use
_ACCOUNTS = ("postgres", "nobody")  # who runs it where tests run as root: the server refuses to
_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
fsync = off
max_connections = 40
authentication_timeout = 10s
shared_buffers = 32MB
"""
_SHELL = """
programs=$1 folder=$2 user=$3 settings=$4 data=$2/data
"$programs"/initdb --pgdata="$data" --username="$user" --pwfile="$folder"/password \
  --auth=scram-sha-256 --no-sync --encoding=UTF8 --locale=C >&2 \
  && printf '%s' "$settings" >> "$data"/postgresql.conf \
  && "$programs"/pg_ctl --pgdata="$data" --wait --silent --log="$folder"/log start >&2 \
  && echo ready
read -r _
"$programs"/pg_ctl --pgdata="$data" --wait --silent --mode=immediate stop >&2
rm -rf "$folder"
"""


class Server:
    """A server that runs. `port` is on 127.0.0.1; USER with PASSWORD may do everything."""

    def __init__(self, programs: Path, folder: Path, port: int) -> None:
        self.port = port
        self._programs = programs
        self._folder = folder
        self._numbers = itertools.count(1)

    def url(self, database: str, *, password: str = PASSWORD) -> str:
        url = URL.create("postgresql", USER, password, "127.0.0.1", self.port, database)
        return url.render_as_string(hide_password=False)

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A connection on which every statement is a transaction."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            dbname=database,
            autocommit=True,
        )

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement of a test's own; its rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self, encoding: str = "UTF8", template: str = "template0") -> Iterator[str]:
        """The name of a new database, a copy of `template`, that lasts as long as the context."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} ENCODING '{encoding}'")
        try:
            yield name
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def stop(self) -> None:
        """Break all connections and take no new ones; what was committed stays."""
        self._control("--mode=immediate", "stop")

    def start(self) -> None:
        """Go on after `stop`, at the same port."""
        self._control(f"--log={self._folder / 'log'}", "start")

    def _control(self, *arguments: str) -> None:
        data = self._folder / "data"
        command = [str(self._programs / "pg_ctl"), f"--pgdata={data}", "--wait", "--silent"]
        subprocess.run([*command, *arguments], check=True, cwd="/", **_ordinary_user())


@contextmanager
def running_server() -> Iterator[Server]:
    """A server of its own. Skips the test where there is none to start, or fails it if REQUIRED."""
    programs = _programs()
    if programs is None:
        reason = "needs PostgreSQL (Debian: apt-get install postgresql)"
        if os.environ.get(REQUIRED):
            pytest.fail(f"{reason}, and {REQUIRED} is set")
        pytest.skip(reason)
    problems = []
    for _ in range(_TRIES):
        port = _free_port()
        with _temporary_folder() as folder, _serving(programs, folder, port) as problem:
            if not problem:
                yield Server(programs, folder, port)
                return
            problems.append(problem)
    pytest.fail(f"PostgreSQL did not start: {problems[-1]}")


@contextmanager
def _serving(programs: Path, folder: Path, port: int) -> Iterator[str]:
    """Runs a server; gives the reason if it did not start."""
    settings = _SETTINGS.format(port=port, folder=folder)
    with (folder / "output").open("w") as output:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", _SHELL, "sh", programs, folder, USER, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C"},
            start_new_session=True,  # Ctrl-C is for the tests alone
            **_ordinary_user(),
        )
    assert shell.stdin is not None and shell.stdout is not None
    with shell.stdin, shell.stdout:
        try:
            ready = shell.stdout.readline() == b"ready\n"
            yield "" if ready else _last_words(folder)
        finally:
            shell.stdin.close()
            shell.wait()


def _last_words(folder: Path) -> str:
    """The end of what the server or its tools have printed."""
    files = [file for file in (folder / "log", folder / "output") if file.exists()]
    return " | ".join(file.read_text(errors="replace")[-2000:] for file in files)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """An empty folder of the account that runs the server, with the password in it."""
    folder = Path(tempfile.mkdtemp(prefix="tunefarm-postgresql-"))
    try:
        password = folder / "password"
        password.write_text(PASSWORD)
        for path in (folder, password):
            shutil.chown(path, **_owner())
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    """The folder of initdb and pg_ctl, of the newest version that is installed."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    found = sorted(versions, key=lambda program: float(program.parents[1].name))
    return found[-1].parent if found else None


def _account() -> pwd.struct_passwd:
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(names[name] for name in _ACCOUNTS if name in names)


def _ordinary_user() -> dict[str, Any]:
    """How a process is started so that it does not run as root."""
    if os.geteuid() != 0:
        return {}
    account = _account()
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}


def _owner() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {"user": os.geteuid()}
    account = _account()
    return {"user": account.pw_uid, "group": account.pw_gid}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
