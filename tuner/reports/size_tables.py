"""Latency at several sizes, of models that were tuned for a range: tables for the report.

Sizes with the smallest cost come first.
"""

from __future__ import annotations

import math
import re

from tunefarm.compiler.with_count import with_count
from tunefarm.db import model_queries
from tunefarm.db.store import Store
from tunefarm.tuner.records.size_ranges import SizePlan
from tunefarm.tuner.reports.report import format_seconds, format_time


def size_tables(store: Store) -> list[dict[str, object]]:
    """What jobs found for models with a range of sizes, the newest first.

    Of whole models where they were measured, else of the kernels that depend on sizes.
    """
    found: list[dict[str, object]] = []
    for record in model_queries.plans(store):
        try:
            plan = SizePlan.from_json(record.plan)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # a choice of precisions, or what others wrote
        title = f"{record.model_name}, {with_count(record.threads, 'thread')}, "
        title += format_time(record.created)
        times, other = plan.models, "untuned"
        if not times:
            title, times, other = f"kernels of {title}", plan.seconds, "one schedule for all sizes"
        if len(times) > 1:
            rows = [
                {"sizes": sizes, "cells": [format_seconds(seconds) for seconds in times[sizes]]}
                for sizes in sorted(times, key=_magnitude)
            ]
            found.append({"title": title, "names": ["tuned", other], "rows": rows})
    return found


def _magnitude(sizes: str) -> int:
    """The product of all sizes: what computes less comes first."""
    return math.prod(map(int, re.findall(r"=(\d{1,10})\b", sizes)))
