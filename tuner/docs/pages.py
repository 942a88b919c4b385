"""The pages: those that are written, those of the commands, and the generated references."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm.configs.errors import SettingsError
from tunefarm.tuner.docs.command_pages import COMMANDS, command_pages

if TYPE_CHECKING:
    from typer.core import TyperGroup

PAGES = Path(__file__).parent / "pages"
"""The folder of the pages that are written; pictures are in a folder of it."""

_ENDING = ".md"


@dataclass(frozen=True, slots=True)
class Reference:
    """A page that is generated from the code; `make` imports what it reads."""

    title: str
    make: Callable[[], str]


def _configuration() -> str:
    from tunefarm.tuner.docs.references import configuration_page

    return configuration_page()


def _python_api() -> str:
    from tunefarm.tuner.docs.references import api_page

    return api_page()


def _operators() -> str:
    from tunefarm.tuner.docs.references import operators_page

    return operators_page()


REFERENCES: dict[str, Reference] = {
    "configuration": Reference("Configuration reference", _configuration),
    "api": Reference("Python API reference", _python_api),
    "operators": Reference("Supported operators", _operators),
}
"""Generated pages by path. The operators take a second to import, so pages are made on access."""


class Pages(Mapping[str, str]):
    """The text of each page by its path below the site, without its ending."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """`texts` are the pages that cost nothing to have."""
        self._texts = texts

    def __getitem__(self, path: str) -> str:
        return self._texts[path] if path in self._texts else REFERENCES[path].make()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._texts, *REFERENCES}, key=_order))

    def __len__(self) -> int:
        return len({*self._texts, *REFERENCES})

    def title(self, path: str) -> str:
        """The title of a page; no reference is made for it."""
        return REFERENCES[path].title if path in REFERENCES else title_of(self._texts[path])


def _order(path: str) -> tuple[bool, str]:
    """Pages of the commands come last."""
    return "/" in path, path


def all_pages(root: TyperGroup) -> Pages:
    """Every page of the site."""
    written = {
        path.relative_to(PAGES).as_posix().removesuffix(_ENDING): path.read_text(encoding="utf-8")
        for path in sorted(PAGES.rglob(f"*{_ENDING}"))
    }
    return Pages(written | command_pages(root))


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
