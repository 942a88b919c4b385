"""Pages use the terms of the field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tunefarm.tuner.pages.page import TEMPLATES
from tunefarm.tuner.reports import report

REPORTS = Path(report.__file__).parent
FORMS = [*TEMPLATES.glob("*.jinja"), *REPORTS.glob("*.jinja"), *REPORTS.glob("*.html")]
OURS = re.compile(
    r"known at run time|open sizes|artefact|numerics|spelled(-| )out|in turns|in the place of"
    r"|of yours|scattered|\btexts\b|\bgreatest\b|\bleast\b|lost to noise|\bbeside\b|\bmend\b"
    r"|\ba night\b|contraction|\(s\)",
    re.IGNORECASE,
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_forms_of_pages_have_no_words_of_our_own(form: Path) -> None:
    text = re.sub(r"<style>.*?</style>", " ", form.read_text(encoding="utf-8"), flags=re.S)
    text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|<[^>]*>", " ", text)
    assert text.strip()
    assert [found[0] for found in OURS.finditer(text)] == []
