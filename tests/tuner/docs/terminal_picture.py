"""Draws what a command printed as an SVG that loads nothing from elsewhere.

    script -qec 'stty cols 136; tune --model M.onnx --config quick 2> /dev/null' typescript
    python -m tests.tuner.docs.terminal_picture typescript 'tune --model M.onnx --config quick' \
        tuner/docs/pages/images/terminal.svg
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

_FROM_ELSEWHERE = re.compile(r"@font-face\s*\{[^}]*\}")
_SCRIPT_LINE = re.compile(r"^Script (?:started|done).*$", re.M)
_NO_TEXT = re.compile(r"\x1b\[\?\d+[hl]")


def picture(printed: str, command: str, title: str = "tunefarm") -> str:
    """The SVG text of a terminal in which the command was typed and this was printed."""
    text = _NO_TEXT.sub("", _SCRIPT_LINE.sub("", printed)).replace("\r\n", "\n").strip()
    shown = Text.assemble(("$ ", "bold green"), (command, "bold"), "\n", Text.from_ansi(text), "\n")
    width = max(len(line) for line in shown.plain.splitlines())
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(shown, soft_wrap=True)
    return _FROM_ELSEWHERE.sub("", console.export_svg(title=title))


if __name__ == "__main__":
    typescript, command, output = sys.argv[1:]
    printed = Path(typescript).read_text(encoding="utf-8", errors="replace")
    Path(output).write_text(picture(printed, command), encoding="utf-8")
