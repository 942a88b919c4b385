"""A small self-contained HTML page about a tuning session; `queue_page.jinja` is its form.

Names come from models and from other people's records: the template escapes everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tunefarm.tuner.reports.terminal import readable


def queue_page(
    night: Mapping[str, str],
    lines: Sequence[str],
    entries: Sequence[Mapping[str, Any]],
    next: str,
) -> str:
    """The page: a row for each of the `entries`, values are strings; `share` is what the tuned
    model takes of the untuned one's time, in per cent, or None. `next` is the command to type."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        finalize=lambda value: readable(value) if isinstance(value, str) else value,
    )
    template = environment.get_template("queue_page.jinja")
    return template.render(night=night, lines=lines, entries=entries, next=next)
