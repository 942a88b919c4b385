"""The prose of written pages is easy to read: short paragraphs and short, plain sentences.

Measured is what is left of a page without its code, tables, headings and link targets.
"""

from __future__ import annotations

import re

import pytest
import textstat

from tunefarm.tuner.docs.pages import PAGES

_LONGEST = 90  # words of a paragraph
_GRADE = 11.0  # Flesch-Kincaid: years of school
_NO_PROSE = (
    re.compile(r"^(?P<fence>```+).*?^(?P=fence)$", re.M | re.S),
    re.compile(r"<[^>\n]+>"),  # anchors and comments
    re.compile(r"!\[[^\]]*\]\([^)]*\)"),  # pictures
    re.compile(r"^\s*(\||#).*$", re.M),  # tables, headings
    re.compile(r"`[^`]*`"),
    re.compile(r"(?<=\d)\.(?=\d)"),  # of numbers: they end no sentence
)
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+", re.M)
_MARKS = re.compile(r"^> ?|\*+", re.M)

NAMES = [path.relative_to(PAGES).as_posix() for path in sorted(PAGES.rglob("*.md"))]


def paragraphs_of(page: str) -> list[str]:
    """The paragraphs of a page and the items of its lists, each ended as a sentence."""
    for pattern in _NO_PROSE:
        page = pattern.sub("", page)
    page = _ITEM.sub("\n\n", _LINK.sub(r"\g<text>", page))
    found = (" ".join(part.split()) for part in re.split(r"\n\s*\n", _MARKS.sub("", page)))
    return [text if text[-1] in ".!?" else f"{text}." for text in found if re.search(r"\w", text)]


@pytest.mark.parametrize("name", NAMES)
def test_paragraphs_are_short(name: str) -> None:
    paragraphs = paragraphs_of((PAGES / name).read_text(encoding="utf-8"))
    longest = max(paragraphs, key=lambda text: len(text.split()), default="")
    assert len(longest.split()) <= _LONGEST, longest


@pytest.mark.parametrize("name", NAMES)
def test_sentences_are_plain(name: str) -> None:
    text = " ".join(paragraphs_of((PAGES / name).read_text(encoding="utf-8")))
    assert textstat.flesch_kincaid_grade(text) <= _GRADE


def test_paragraphs_are_found_without_code_tables_and_targets() -> None:
    page = (
        "# Title\n\nOne *two* [three](x.md#y),\nfour `code` five\n\n```sh\ntune\n```\n\n"
        "| a | b |\n\n- item one:\n  more\n- item two!\n\n> **Note:** six.\n\n"
        '<a id="old"></a>\n\n![alt](x.png)\n'
    )
    assert paragraphs_of(page) == [
        "One two three, four five.",
        "item one: more.",
        "item two!",
        "Note: six.",
    ]


def test_long_words_and_sentences_have_a_higher_grade() -> None:
    plain = "The build is fast. It has one file."
    hard = "Notwithstanding considerable heterogeneity, configurations necessitate reconsideration."
    assert textstat.flesch_kincaid_grade(plain) < _GRADE < textstat.flesch_kincaid_grade(hard)
