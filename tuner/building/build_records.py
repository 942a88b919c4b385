"""Builds in the database: which artefact was made when, from which model, of which records."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

import compiler
from compiler.errors import DatabaseError
from configs.settings import Settings
from db import queries
from db.records import BuildRecord, TargetRecord
from db.store import Store
from tuner.reports.report import format_share, format_time
from tuner.targets import target_of

if TYPE_CHECKING:
    from tuner.building.emitted import Emitted

DIGITS = 12  # of a digest in a table


def record_build(settings: Settings, model: str, emitted: Emitted) -> str:
    """List a build in the database that it was made from; why that failed, or "".

    An artefact that came out before is listed already, with the file that it first went to. A
    build server may have the records for reading only: that is no reason to fail.
    """
    target = target_of(settings)
    record = BuildRecord(
        id=uuid.uuid4().hex,
        model_name=Path(model).stem,
        model_hash=emitted.model_hash,
        target=target.key,
        threads=settings.compile.threads,
        numerics=settings.compile.numerics,
        compiler_version=compiler.VERSION,
        artefact_sha256=emitted.digest,
        tuned_share=emitted.report.tuned_share,
        report=emitted.to_json(),
        created=time.time(),
    )
    try:
        with Store.open(settings.database.url, create=False) as store:
            if queries.is_built(store, emitted.model_hash, emitted.digest):
                return ""
            store.add_targets([TargetRecord(target.key, target.to_json())])
            store.record_builds([record])
    except DatabaseError as error:
        return f"the build is not recorded: {error.message}"
    return ""


def builds_table(store: Store, limit: int) -> Table:
    """A row per build, the newest first."""
    table = Table(header_style="bold")
    table.add_column("built (UTC)", no_wrap=True)
    table.add_column("model", overflow="ellipsis", no_wrap=True)
    for name in ("target", "threads", "numerics", "tuned", "artefact"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("file", overflow="fold")
    for build in queries.builds(store, limit=limit):
        table.add_row(
            format_time(build.created),
            build.model_name,
            build.target,
            str(build.threads),
            build.numerics,
            format_share(build.tuned_share),
            build.artefact_sha256[:DIGITS],
            str(build.report.get("output", "-")),
        )
    return table
