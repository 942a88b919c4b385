"""Adds what was chosen for a model as a whole to a database: precisions, sizes, or its graph."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from tunefarm import compiler
from tunefarm.compiler.target import Target, host_target
from tunefarm.configs.settings import Settings
from tunefarm.measure.machine import cpu_name

if TYPE_CHECKING:
    from tunefarm.db.store import Store


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
    from tunefarm.db.records import PlanRecord, TargetRecord

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
