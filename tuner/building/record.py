"""The database of a build: opened for its records, and listing what was made of them, and what was
chosen for a model as a whole.

Untuned builds have none, and import nothing of SQLAlchemy.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tunefarm import compiler
from tunefarm.compiler.errors import DatabaseError, SettingsError
from tunefarm.compiler.target import Target, host_target
from tunefarm.configs.settings import Settings
from tunefarm.db.records import BuildRecord, PlanRecord, TargetRecord
from tunefarm.measure.machine import cpu_name
from tunefarm.tuner.building.request import BuildRequest, BuildResult, is_shipped
from tunefarm.tuner.from_settings import targets_of

if TYPE_CHECKING:
    from tunefarm.db.store import Store


_T = TypeVar("_T")


@contextmanager
def open_records(databases: Sequence[str]) -> Iterator[Store | None]:
    """The first of these databases, and the others as its layers, open for reading; None of none.

    Damaged rows are left out. Raises DatabaseError, and SettingsError for a file that is not there.
    """
    if not databases:
        yield None
        return
    for url in databases:
        if not os.path.exists(url) and "://" not in url:
            hint = "tune MODEL makes one; without one: --untuned, or in Python no db="
            hint = hint if url == databases[0] else "it is one of the layers: database.layers"
            raise SettingsError(f"no such database: {url}", hint=hint)
    from tunefarm.db.store import Store

    with ExitStack() as stack:
        stores = []
        for url in databases:
            opened = Store.open(url, create=False, read_only=True, leave_damaged=True)
            stores.append(stack.enter_context(opened))
            stores[-1].is_shipped = is_shipped(url)
        store, *layers = stores
        store.layers = tuple(layers)
        yield store


def with_records(databases: Sequence[str], work: Callable[[Store | None], _T]) -> _T:
    """What `work` makes of the records; again where it meets damaged rows that opening does not
    see, those of large databases, without these."""
    with open_records(databases) as store:
        while True:
            try:
                return work(store)
            except DatabaseError:
                stores = () if store is None else (store, *store.layers)
                if not sum(each.leave_damaged() for each in stores):
                    raise


def record_build(request: BuildRequest, target: Target, result: BuildResult) -> str:
    """List a build in the database that it was made from; why that failed, or "".

    An artifact that came out before is listed already, with the file that it first went to. A
    build server may have the records for reading only: that is no reason to fail. Several programs
    are listed once for each of their targets, with the report of the lowest tuned share.
    """
    listed = [(target, result.report)]
    if result.programs:
        listed = []
        for target in targets_of(request.settings):
            own = (p.report for p in result.programs if p.target == target.key and not p.fallback)
            listed.append((target, min(own, key=lambda report: report.tuned_share)))
    from tunefarm.db import model_queries
    from tunefarm.db.store import Store

    settings = request.settings
    records = [
        BuildRecord(
            id=uuid.uuid4().hex,
            model_name=request.name,
            model_hash=result.model_hash,
            target=target.key,
            threads=settings.compile.threads,
            numerics=settings.compile.numerics,
            compiler_version=compiler.VERSION,
            artefact_sha256=result.digest,
            tuned_share=report.tuned_share,
            report={**result.named, **report.to_json()},
            created=time.time(),
        )
        for target, report in listed
    ]
    try:
        with Store.open(
            settings.database.url, create=False, upgrade=False, leave_damaged=True
        ) as store:
            if model_queries.is_built(store, result.model_hash, result.digest):
                return ""
            store.add([TargetRecord(target.key, target.to_json()) for target, _ in listed])
            store.add(records)
    except DatabaseError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return f"the build is not recorded: {error.message}{hint}"
    return ""


def keep_plan(
    store: Store,
    kind: str,
    plan: dict[str, Any],
    name: str,
    model_hash: str,
    settings: Settings,
    target: Target,
) -> None:
    """Record a plan of this kind, JSON values, for a model by its graph as it was imported.

    Raises DatabaseError.
    """

    record = PlanRecord(
        id=uuid.uuid4().hex,
        model_name=name,
        model_hash=model_hash,
        target=target.key,
        threads=settings.compile.threads,
        numerics=kind,
        compiler_version=compiler.VERSION,
        plan=plan,
        created=time.time(),
        cpu=cpu_name() if target.key == host_target().key else None,
    )
    store.add([TargetRecord(target.key, target.to_json())])
    store.add([record])
