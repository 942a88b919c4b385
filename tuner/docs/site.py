"""The documentation as a site: built by MkDocs without a network, and shown on loopback."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tunefarm.configs.errors import SettingsError

CONFIGURATION = Path(__file__).parent / "mkdocs.yml"
LOOPBACK = "127.0.0.1"
_INSTALL = "pip install 'tunefarm[docs]', or read a page here: tune docs PAGE"


def build_site(folder: Path) -> None:
    """Write the site into a folder, which is emptied first.

    Warnings, of links that lead nowhere for example, are errors. Raises SettingsError, also where
    MkDocs is not installed.
    """
    try:
        from mkdocs.commands.build import build
        from mkdocs.config import load_config
        from mkdocs.exceptions import MkDocsException
    except ImportError:
        raise SettingsError(
            "the site is built by MkDocs, which is missing", hint=_INSTALL
        ) from None
    text: list[str] = []
    with _warnings_of("mkdocs", text):
        try:
            config = load_config(str(CONFIGURATION), site_dir=str(folder.resolve()), strict=True)
            build(config)
        except (MkDocsException, SystemExit) as error:
            why = "; ".join(text) or str(error)
            raise SettingsError(f"the documentation cannot be built: {why}") from error


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than a site. Raises SettingsError."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; the site needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "index.html").is_file():
        raise SettingsError(
            f"{folder} holds something else than a site", hint="name a new or an empty folder"
        )
    if not folder.resolve().parent.is_dir():
        raise SettingsError(f"there is no folder {folder.resolve().parent}")


@contextmanager
def served_site(port: int) -> Iterator[ThreadingHTTPServer]:
    """Build the site into a temporary folder, and listen on loopback; port 0 takes a free one."""
    with tempfile.TemporaryDirectory(prefix="tunefarm-docs-") as folder:
        build_site(Path(folder))
        try:
            server = ThreadingHTTPServer((LOOPBACK, port), partial(_QuietHandler, directory=folder))
        except OSError as error:
            why = error.strerror or error
            raise SettingsError(f"cannot listen on port {port}: {why}", hint="--port 0") from None
        with server:
            yield server


def address_of(server: ThreadingHTTPServer) -> str:
    """What to type into a browser."""
    return f"http://{LOOPBACK}:{server.server_address[1]}/index.html"


class _QuietHandler(SimpleHTTPRequestHandler):
    """Sends the files of a folder, and prints no line for each."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _warnings_of(name: str, text: list[str]) -> Iterator[None]:
    """Collect what a library's logger warns of, instead of printing it."""

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text.append(" ".join(record.getMessage().split()))

    logger, handler = logging.getLogger(name), Collect(logging.WARNING)
    former = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = former
        sys.stdout.flush()
