"""`tune watch --serve`: the jobs of a database as a page, for browsers on this machine alone.

Whoever reaches a port of the loopback interface may be a page of another site that has its name
point there (DNS rebinding): only requests to this machine by its own names are answered.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from tunefarm.configs.errors import DatabaseError, SettingsError, TunefarmError
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.tuner.commands.job_status import RUNNING, status_to_json
from tunefarm.tuner.pages.best_curve import best_curve
from tunefarm.tuner.pages.packed import EXACT_DIGITS, visible
from tunefarm.tuner.pages.page import TEMPLATES, page_of
from tunefarm.tuner.records.jobs import find_job
from tunefarm.tuner.reports import report
from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.reports.terminal import readable

ADDRESS = "127.0.0.1"
_NAMES = (ADDRESS, "localhost")
_SECONDS = 10.0  # that a client may take to say what it wants
_FILES = {
    "/": ("live_page.html", "text/html"),
    "/live.js": ("live_page.js", "text/javascript"),
    "/live.css": ("live_page.css", "text/css"),
}
_PAGES = Path(report.__file__).parent
_STYLE = TEMPLATES / "report.css"
_OWN = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
_REPORT = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
"""All of a report is in its one file."""


class LiveServer(ThreadingHTTPServer):
    """Serves one database on a port of the loopback interface; 0: a free one."""

    daemon_threads = True

    def __init__(self, store: Store, job: str | None, port: int) -> None:
        """`job` is what the page shows first. Raises SettingsError if the port is taken."""
        self.store = store
        self.job = job
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"port {port} of {ADDRESS}: {error.strerror or error}",
                hint="--port 0 takes one that is free",
            ) from error

    @property
    def url(self) -> str:
        """What to type into a browser."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def is_ours(self, host: str) -> bool:
        """Whether a request's Host names this server."""
        return host in {f"{name}:{self.server_port}" for name in _NAMES}


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = _SECONDS
    server_version, sys_version = "tune", ""
    protocol_version = "HTTP/1.1"
    _sent: ClassVar = {
        "Cache-Control": "no-store",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }

    def do_GET(self) -> None:
        if self.headers.get_all("Host", []) != [self.headers.get("Host")] or not (
            self.server.is_ours(self.headers["Host"])
        ):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", f"this is {self.server.url}")
            return
        path, _, query = self.path.partition("?")
        try:
            self._page(path, query)
        except TunefarmError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))

    do_HEAD = do_GET  # noqa: N815 - the library looks for this name

    def _page(self, path: str, query: str) -> None:
        if path == "/report.css":
            self._answer(HTTPStatus.OK, "text/css", _STYLE.read_text(encoding="utf-8"))
        elif path in _FILES:
            name, kind = _FILES[path]
            self._answer(HTTPStatus.OK, kind, (_PAGES / name).read_text(encoding="utf-8"))
        elif path == "/state.json":
            asked = query.removeprefix("job=") if query.startswith("job=") else self.server.job
            value = live_state(self.server.store, asked)
            text = json.dumps(
                visible(value, readable, EXACT_DIGITS), ensure_ascii=False, allow_nan=False
            )
            self._answer(HTTPStatus.OK, "application/json", text)
        elif path == "/report":
            page = page_of(self.server.store)
            self._answer(HTTPStatus.OK, "text/html", page, _REPORT)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is no such page")

    def _answer(self, status: HTTPStatus, kind: str, text: str, policy: str = _OWN) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", policy)
        for name, value in self._sent.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: every page asks again every few seconds."""


def live_state(store: Store, name: str | None) -> dict[str, Any]:
    """What the page shows: all jobs, and the kernels of one (None: of the one that runs, or of the
    newest), as JSON values; what is not known is null."""
    jobs = queries.jobs(store)
    shown = None
    if name is not None:
        try:
            shown = find_job(store, name)
        except DatabaseError:
            name = None
    if name is None:
        shown = next((job for job in jobs if job.state == RUNNING), next(iter(jobs), None))
    state = JobState() if shown is None else JobState.of(shown.progress)
    return {
        "database": store.name,
        "jobs": status_to_json(jobs),
        "job": None if shown is None else shown.id,
        "kernels": [report.task_to_json(task) for task in state.tasks],
        "curve": best_curve(state.history),
    }
