"""The server that tests start is there, or its absence is said; and it never stays behind."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.db import postgresql
from tests.db.postgresql import REQUIRED, Server, running_server
from tunefarm.configs.layers import ENVIRONMENT_PREFIX

OWNER = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
from tests.db.postgresql import running_server
with running_server() as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "_programs", lambda: None)


def test_tests_are_skipped_with_a_reason_where_none_is_installed(
    nothing_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs PostgreSQL"), running_server():
        pass


def test_tests_fail_where_a_server_is_required_and_none_is_installed(
    nothing_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="needs PostgreSQL"), running_server():
        pass


def test_ci_requires_a_server(repository: Path) -> None:
    script = (repository / ".ci" / "run").read_text()
    assert re.search(rf"^export .*\b{REQUIRED}=1\b", script, re.MULTILINE)
    assert not REQUIRED.startswith(ENVIRONMENT_PREFIX)  # or it would be read as a setting


def test_two_servers_do_not_collide(postgresql: Server) -> None:
    with running_server() as other:
        assert other.port != postgresql.port
        assert other.execute("SELECT 1") == [(1,)]
    assert postgresql.execute("SELECT 1") == [(1,)]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_server_ends_with_the_process_that_started_it(end: int, postgresql: Server) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert owner.stdin is not None and owner.stdout is not None
    with owner.stdin, owner.stdout:
        port = int(owner.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(60)
            owner.send_signal(end)
            assert connection.recv(1) == b""
        owner.wait(60)
