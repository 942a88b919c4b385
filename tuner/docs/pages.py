"""The pages: those that are written, and the references that are generated from the code."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tunefarm.configs.errors import SettingsError

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
    """The text of each page of the site by its name."""

    def __init__(self) -> None:
        self._files = {path.stem: path for path in PAGES.glob(f"*{_ENDING}")}

    def __getitem__(self, name: str) -> str:
        if name in REFERENCES:
            return REFERENCES[name].make()
        return self._files[name].read_text(encoding="utf-8")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._files, *REFERENCES}))

    def __len__(self) -> int:
        return len({*self._files, *REFERENCES})

    def title(self, name: str) -> str:
        """The title of a page; no reference is made for it."""
        return REFERENCES[name].title if name in REFERENCES else title_of(self[name])


def title_of(text: str) -> str:
    """The first heading of a page."""
    return text.partition("# ")[2].partition("\n")[0].strip()


def find_page(pages: Mapping[str, str], name: str) -> str:
    """The name of the page that is asked for. Raises SettingsError where there is none."""
    found = name.strip().removesuffix(_ENDING)
    if found in pages:
        return found
    near = difflib.get_close_matches(found, pages, n=1, cutoff=0.75)
    meant = f"did you mean {near[0]}? " if near else ""
    raise SettingsError(f"there is no page {name!r}", hint=f"{meant}tune docs lists the pages")
