"""The pages: those that are written, by name, and those of the commands, made from the code."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm.configs.errors import SettingsError
from tunefarm.tuner.docs.command_pages import COMMANDS, command_pages

if TYPE_CHECKING:
    from typer.core import TyperGroup

PAGES = Path(__file__).parent / "pages"
"""The folder of the pages that are written; pictures are in a folder of it."""

_ENDING = ".md"


def all_pages(root: TyperGroup) -> Mapping[str, str]:
    """The text of each page by its path below the site, without its ending."""
    written = {
        path.relative_to(PAGES).as_posix().removesuffix(_ENDING): path.read_text(encoding="utf-8")
        for path in sorted(PAGES.rglob(f"*{_ENDING}"))
    }
    return written | command_pages(root)


def title_of(text: str) -> str:
    """The first heading of a page."""
    for line in text.splitlines():
        if line.startswith("# "):
            return line.removeprefix("# ").strip()
    return ""


def find_page(pages: Mapping[str, str], name: str) -> str:
    """The path of the page that is asked for, by its path or, for a command, by its words.

    "build", "tune build" and "commands/build" are one page if no page that is written has that
    name. Raises SettingsError where there is none.
    """
    words = name.strip().removesuffix(_ENDING).strip("/")
    command = "-".join(words.removeprefix("tune ").split())
    for path in (words, f"{COMMANDS}/{command}"):
        if path in pages:
            return path
    near = difflib.get_close_matches(words, pages, n=1, cutoff=0.75)
    meant = f"did you mean {near[0]}? " if near else ""
    raise SettingsError(f"there is no page {name!r}", hint=f"{meant}tune docs lists the pages")
