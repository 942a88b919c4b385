"""What shells complete after `tune` besides commands, options and files: values of options.

Typer asks for them, and only then is anything imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import typer

from tunefarm.compiler.errors import TunefarmError
from tunefarm.tuner.commands.command_files import DEFAULT_DATABASE

_MOST_JOBS = 50


def target_values() -> Sequence[str]:
    """The names that `--targets` takes."""
    from tunefarm.configs.settings import HOST, targets

    return [HOST, *targets()]


def stage_values() -> Sequence[str]:
    """The stages of `--dump-after`."""
    from tunefarm.compiler.pipeline import STAGES

    return ["all", *STAGES]


def network_values() -> Sequence[str]:
    """The networks of `tune zoo`."""
    from tunefarm.compiler.frontend.zoo import model_names

    return model_names()


def page_values() -> Sequence[str]:
    """The pages of `tune docs`."""
    from tunefarm.tuner.docs.pages import Pages

    return [*Pages()]


def job_values(context: typer.Context) -> Sequence[str]:
    """Ids of the newest jobs of the database, and the name of the last one."""
    from tunefarm.db import queries
    from tunefarm.db.store import Store

    database = str(context.params.get("db") or DEFAULT_DATABASE)
    with (
        suppress(OSError, TunefarmError),
        Store.open(database, create=False, read_only=True) as store,
    ):
        return ["last", *(job.id for job in queries.jobs(store)[:_MOST_JOBS])]
    return []
