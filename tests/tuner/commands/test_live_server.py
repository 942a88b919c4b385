"""The page of `tune watch --serve`: what it answers, and to whom."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest

from tests.tuner.commands.live_jobs import begin, state
from tunefarm.configs.errors import SettingsError
from tunefarm.db.store import Store
from tunefarm.tuner.commands.live_server import ADDRESS, LiveServer

LIMIT = 60.0


@pytest.fixture
def server(store: Store) -> Iterator[LiveServer]:
    with LiveServer(store, None, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(LIMIT)


def ask(server: LiveServer, path: str, **headers: str) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection(ADDRESS, server.server_port, timeout=LIMIT)
    try:
        connection.request(headers.pop("method", "GET"), path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def state_of(server: LiveServer, path: str = "/state.json") -> Any:
    return json.loads(ask(server, path)[1])


def test_the_running_job_is_shown_unless_another_one_is_chosen(
    server: LiveServer, store: Store
) -> None:
    assert state_of(server)["job"] is None
    running, newest = begin(store), begin(store, "other.onnx")
    store.update_job(running, state(7).to_json())
    store.finish_job(newest, "finished", state(9).to_json())
    shown = state_of(server)
    assert shown["job"] == running and shown["kernels"][0]["trials"] == 7
    assert [job["state"] for job in shown["jobs"]] == ["finished", "running"]
    assert state_of(server, f"/state.json?job={newest}")["kernels"][0]["trials"] == 9
    assert state_of(server, "/state.json?job=nothing")["job"] == running


def test_names_come_as_data_that_no_page_runs(server: LiveServer, store: Store) -> None:
    store.update_job(begin(store), state(7).to_json())
    answer, text = ask(server, "/state.json")
    assert answer.getheader("Content-Type") == "application/json; charset=utf-8"
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    # The name is without its escape sequence.
    assert json.loads(text)["kernels"][0]["kernel"] == "<b>conv</b>"
    _, script = ask(server, "/live.js")
    assert "innerHTML" not in script and "textContent" in script
    page, html = ask(server, "/")
    assert "'self'" in str(page.getheader("Content-Security-Policy"))
    assert "http" not in html.replace("<!doctype html>", "")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "", "localhost"])
def test_requests_by_other_names_are_refused(server: LiveServer, host: str) -> None:
    for path in ("/", "/state.json", "/report"):
        answer, text = ask(server, path, Host=host)
        assert answer.status == 403 and server.url in text


def test_this_machine_has_two_names(server: LiveServer) -> None:
    for name in (ADDRESS, "localhost"):
        assert ask(server, "/", Host=f"{name}:{server.server_port}")[0].status == 200


def test_it_listens_on_the_loopback_interface_alone(server: LiveServer) -> None:
    assert server.server_address[0] == ADDRESS


def test_the_report_is_one_click_away(server: LiveServer, store: Store) -> None:
    begin(store)
    answer, page = ask(server, "/report")
    assert answer.status == 200 and "net.onnx" in page


@pytest.mark.parametrize("path", ["/nothing", "/../../etc/passwd", "/live_page.html"])
def test_other_pages_are_not_there(server: LiveServer, path: str) -> None:
    assert ask(server, path)[0].status == 404


def test_nothing_can_be_changed_by_it(server: LiveServer) -> None:
    assert ask(server, "/state.json", method="POST")[0].status == 501
    answer, text = ask(server, "/", method="HEAD")
    assert answer.status == 200 and text == ""


def test_a_taken_port_is_one_error(server: LiveServer, store: Store) -> None:
    with pytest.raises(SettingsError, match="--port 0 takes one that is free"):
        LiveServer(store, None, server.server_port)
