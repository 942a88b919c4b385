"""Names steer no terminal: nothing but visible text, lines and a console's own codes is printed."""

from __future__ import annotations

import io
import json
import sys

import pytest
import typer
from rich.table import Table

from tunefarm.tuner.commands.command_line import run_command, write_json
from tunefarm.tuner.reports.progress import LiveProgress, PlainProgress
from tunefarm.tuner.reports.terminal import (
    PrintableStream,
    console,
    printable,
    printable_streams,
    readable,
)

EVIL = "conv\x1b]0;owned\x07\x1b[2J\rfast\x9b31m\u202eerif\u2066\u2028\ud800[bold]:smile:"
SEEN = "conv\\x1b]0;owned\\x07\\x1b[2J\\rfast\\x9b31m\\u202eerif\\u2066\\u2028\\ud800[bold]:smile:"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_controls_become_visible_and_the_rest_stays() -> None:
    assert printable(EVIL) == SEEN
    assert printable("größer µs 名前 🙂\n\tx") == "größer µs 名前 🙂\n\tx"


def test_table_cells_titles_and_messages_are_printable() -> None:
    stream = io.StringIO()
    table = Table(title=EVIL)
    table.add_column(EVIL, no_wrap=True)
    table.add_row(EVIL)
    shown = console(stream)
    shown.print(table)
    shown.print(EVIL)
    assert stream.getvalue().count(SEEN) == 4
    assert "\x1b" not in stream.getvalue()


def test_progress_on_a_terminal_sends_only_codes_of_its_own() -> None:
    stream = _Terminal()
    LiveProgress(stream).message(EVIL)
    assert SEEN in stream.getvalue().replace("\n", "")
    assert "]0;owned\x07" not in stream.getvalue()
    assert "\u202e" not in stream.getvalue()


def test_commands_print_and_fail_printably(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    table = Table()
    table.add_column("name", no_wrap=True)
    table.add_row(EVIL)

    @app.command()
    def command() -> None:
        print(EVIL)
        console().print(table)
        PlainProgress(sys.stderr).message(EVIL)
        raise ValueError(EVIL)

    assert run_command(app, ["--debug"]) == 1
    captured = capsys.readouterr()
    assert captured.out.count(SEEN) == 2
    assert captured.err.count(SEEN) >= 2
    assert printable(captured.out + captured.err) == captured.out + captured.err


def test_json_on_a_terminal_says_the_same_with_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    with printable_streams():
        write_json("-", {"name": EVIL})
    text = capsys.readouterr().out
    assert printable(text) == text
    assert json.loads(text) == {"name": EVIL}


def test_a_reset_at_the_end_of_the_process_is_not_seen() -> None:
    """Libraries that colour their output write one through the stream that they found."""
    raw = io.StringIO()
    stream = PrintableStream(raw)
    stream.write("\x1b[0m")
    assert raw.getvalue() == ""
    stream.write("a\x1b[31mb\x1b[0mc\n")
    assert raw.getvalue() == "a\\x1b[31mbc\n"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[1;31mconv\x1b[0m", "conv"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x1b\\", "link"),
        ("a\x1b", "a\ufffd"),
        ("a\u202eb\r", "a\ufffdb\ufffd"),
        ("two\n\tlines", "two\n\tlines"),
    ],
)
def test_pages_have_names_without_escape_sequences(text: str, seen: str) -> None:
    assert readable(text) == seen
