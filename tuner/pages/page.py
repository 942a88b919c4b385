"""The page that `tune report` writes: one file, without anything from elsewhere.

records -> contents -> kernels, models, jobs -> a template and compressed JSON -> HTML
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tunefarm.compiler.content_cache import ContentCache, cache_key, source_digest
from tunefarm.configs.settings import cache_folder, load_settings
from tunefarm.db.records import JobRecord
from tunefarm.db.store import Store
from tunefarm.tuner.pages.contents import Contents, PageOptions, read_contents
from tunefarm.tuner.pages.kernels import (
    details_of,
    kernels_of,
    rooflines,
    rows_of,
)
from tunefarm.tuner.pages.models import (
    jobs_of,
    models_of,
    plan_rows,
    size_tables,
)
from tunefarm.tuner.pages.packed import packed, packed_text, visible
from tunefarm.tuner.records.model_latencies import MeasuredModel
from tunefarm.tuner.reports.gains import gain_class, headline, largest_gains
from tunefarm.tuner.reports.job_state import JobState, Moment
from tunefarm.tuner.reports.report import (
    format_counts,
    format_duration,
    format_seconds,
)
from tunefarm.tuner.reports.terminal import readable

TEMPLATES = Path(__file__).parent / "templates"
"""The folder of the parts that pages are made of."""


def page_of(store: Store, options: PageOptions | None = None) -> str:
    """The page about a database. Raises SettingsError for jobs and builds that there are not."""
    return html_of(parts_of(store, options or PageOptions()))


def parts_of(store: Store, options: PageOptions) -> dict[str, Any]:
    """What a page shows, by its parts. Raises SettingsError as `page_of` does."""
    contents = read_contents(store, options)
    kernels = kernels_of(contents)
    roofs = rooflines(contents, kernels)
    return {
        "name": contents.name,
        "headline": _headline_of(contents),
        "jobs": jobs_of(contents),
        "models": models_of(contents),
        "kernels": rows_of(kernels),
        "details": {k.anchor: details_of(k, roofs.get(k.anchor), contents.name) for k in kernels},
        "left_out": contents.left_out,
        "plans": plan_rows(store),
        "sizes": size_tables(store),
    }


def json_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts as JSON values, without drawings."""
    kernels = [{**row, "details": parts["details"][row["anchor"]]} for row in parts["kernels"]]
    headline = parts["headline"]
    if headline is not None:
        headline = {name: value for name, value in headline.items() if name != "curve"}
    named = ("name", "jobs", "models", "plans", "sizes", "left_out")
    shown = {name: parts[name] for name in named}
    return dict(visible(shown | {"headline": headline, "kernels": kernels}))


def html_of(parts: Mapping[str, Any]) -> str:
    """The parts as one HTML file.

    No script runs but the page's own, which its policy names by a hash of all that the page holds
    (the same records give the same page); what comes from records could not load anything either.
    """
    figures, library = _plots()
    script = _own("report.js")
    details = {name: packed(value) for name, value in parts["details"].items()}
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_visible,
    )
    return environment.get_template("report.jinja").render(
        **parts,
        nonce=_nonce(parts, details),
        packed_details=details,
        figures=figures,
        library=library,
        style=_own("report.css"),
        script=script,
    )


def _nonce(parts: Mapping[str, Any], details: Mapping[str, str]) -> str:
    """Of all that came from records: who writes one cannot know it."""
    named = ("name", "headline", "jobs", "models", "kernels", "plans")
    content = "".join((repr([parts[name] for name in named]), *details.values()))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@cache
def _plots() -> tuple[str, str]:
    """The figures and the library that draws them, packed; nothing where that is not installed."""
    try:
        made_by = version("bokeh")
    except PackageNotFoundError:
        return "", ""
    kept_in = _cache()
    key = cache_key("plots", made_by, source_digest(Path(__file__).parent))
    kept = None if kept_in is None else kept_in.find(key)
    if kept is not None and isinstance(kept[0], list) and len(kept[0]) == 2:
        return str(kept[0][0]), str(kept[0][1])
    from tunefarm.tuner.pages import plots  # takes longer than all the rest

    made = packed(plots.figures()), packed_text(plots.library())
    if kept_in is not None:
        kept_in.add(key, list(made))
    return made


def _cache() -> ContentCache | None:
    folder = cache_folder(load_settings())
    return None if folder is None else ContentCache(folder)


def _own(name: str) -> Markup:
    """A file of ours that goes into the page as it is."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def _visible(value: Any) -> Any:
    """Control characters are no HTML, and those of direction would turn a line round."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return readable(value) if is_text else value


def _headline_of(contents: Contents) -> dict[str, Any] | None:
    """The newest job's result in a line, what it is made of, its largest gains with their reasons,
    and its curve; None without a job and without a model that was measured."""
    job = next(iter(contents.jobs), None)
    found = _measured(contents, job)
    if job is None and found is None:
        return None
    state = JobState() if job is None else JobState.of(job.progress)
    shown: dict[str, Any] = {
        "model": job.model_name if found is None and job is not None else "",
        "text": "the whole model was not measured yet",
        "class": "same",
        "details": [] if job is None else [_effort(job)],
        "gains": largest_gains(state.tasks),
        "curve": best_curve(state.history),
    }
    ratio = None if found is None else found.times.over_untuned
    if found is None or ratio is None:
        return shown
    times = found.times
    shown["model"] = found.record.model_name
    shown["text"] = headline(ratio.ratio, ratio.low, ratio.high)
    shown["class"] = gain_class(ratio.low, ratio.high)
    latency = f"{format_seconds(times.tuned)} per run"
    if times.untuned is not None and not ratio.is_unchanged:
        untuned, tuned = format_seconds(times.untuned), format_seconds(times.tuned)
        latency = f"{untuned} untuned, {tuned} tuned"
    shown["details"] = [latency, *shown["details"]]
    return shown


def _measured(contents: Contents, job: JobRecord | None) -> MeasuredModel | None:
    """The newest latency that the job measured; without a job the newest that met the untuned."""
    for found in contents.models:
        if found.times.over_untuned is not None and (job is None or found.record.job == job.id):
            return found
    return None


def _effort(job: JobRecord) -> str:
    """How much was measured, and how long that took."""
    state = JobState.of(job.progress)
    lasted = format_duration((job.finished or job.updated) - job.started)
    trials = f"{state.trials} {'trial' if state.trials == 1 else 'trials'}"
    return f"{format_counts(trials, state.failures, state.scattered)} in {lasted}"


# The best latency so far over a job's time, as a drawing for the report; round values of axes.


WIDTH, HEIGHT = 380, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 18, 10, 26
_TIMES = 4  # marks of the time axis


def best_curve(history: Sequence[Moment]) -> dict[str, Any] | None:
    """A path and marks of both axes, in pixels; None of a history that is no line yet."""
    known = [moment for moment in history if 0 < moment.latency < math.inf]
    if len(known) < 2:
        return None
    first, last = known[0].seconds, max(known[-1].seconds, known[0].seconds + 1e-3)
    low, high = min(m.latency for m in known), max(m.latency for m in known)
    margin = max(0.08 * (high - low), 0.01 * high)
    low, high = low - margin, high + margin

    def across(seconds: float) -> float:
        share = (seconds - first) / (last - first)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def down(latency: float) -> float:
        share = (high - latency) / (high - low)
        return round(_TOP + share * (HEIGHT - _TOP - _BOTTOM), 1)

    path = f"M{across(first)} {down(known[0].latency)}"
    path += "".join(f"H{across(m.seconds)}V{down(m.latency)}" for m in known[1:])
    times = [first + part * (last - first) / (_TIMES - 1) for part in range(_TIMES)]
    marks = {format_duration(seconds): across(seconds) for seconds in times}
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "path": path,
        "x": [{"at": at, "text": text} for text, at in marks.items()],
        "y": [
            {"at": down(value), "text": format_seconds(value)}
            for value in round_values(low, high, 4)
        ],
        "left": _LEFT,
        "right": WIDTH - _RIGHT,
        "bottom": HEIGHT - _BOTTOM,
        "caption": _caption(known),
    }


def _caption(history: Sequence[Moment]) -> str:
    """Where the line begins and ends, in words."""
    first, last = history[0], history[-1]
    return (
        "Expected latency of the model's kernels with the best schedules so far: "
        f"{format_seconds(first.latency)} after {first.trials} trials, "
        f"{format_seconds(last.latency)} after {last.trials}."
    )


_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MOST_TICKS = 6


def round_values(low: float, high: float, most: int = MOST_TICKS) -> list[float]:
    """At most so many multiples of a round number within a range: 0, 0.5, 1, 1.5.

    `low` is below `high`, both are finite.
    """
    smallest = (high - low) / max(1, most - 1)
    scale = 10.0 ** math.floor(math.log10(smallest))
    step = next(scale * step for step in _STEPS if scale * step >= 0.999 * smallest)
    return list(_multiples(step, low, high))


def _multiples(step: float, low: float, high: float) -> Iterator[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    for number in range(first, last + 1):
        yield float(f"{number * step:.6g}")
