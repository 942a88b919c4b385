"""Targets, machines, workloads, tasks, jobs and trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tunefarm.db.migrations.tables import create_indices, create_table, reference, required
from tunefarm.db.schema import where

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema before this one to it."""
    for table, characters in (("targets", 200), ("machines", 64)):
        key = sa.Column("key", sa.String(characters), nullable=False, unique=True)
        create_table(table, key, *required(sa.Text(), "description"))
    create_table(
        "workloads",
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        *required(sa.Text(), "name", "kernel"),
    )
    key_columns = ("workload_id", "target_id", "threads", "numerics", "compiler_version")
    create_table(
        "tasks",
        reference("workload_id"),
        reference("target_id"),
        *required(sa.Integer(), "threads"),
        *required(sa.String(32), "numerics"),
        *required(sa.String(64), "compiler_version"),
        sa.UniqueConstraint(*key_columns, name="uq_tasks_key"),
        indexed=("target_id",),
    )
    create_table(
        "jobs",
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        *required(sa.Text(), "model_name"),
        sa.Column("model_hash", sa.String(64), nullable=False),
        *required(sa.Text(), "settings"),
        *required(sa.String(16), "state"),
        *required(sa.Float(), "started", "updated"),
        sa.Column("finished", sa.Float()),
        *required(sa.Text(), "progress"),
        indexed=("model_hash",),
    )
    op.create_table(
        "job_tasks",
        reference("job_id", primary_key=True),
        reference("task_id", primary_key=True),
        *required(sa.Integer(), "position", "occurrences"),
    )
    create_indices("job_tasks", "task_id")
    create_table(
        "trials",
        reference("task_id"),
        reference("job_id", nullable=True),
        reference("machine_id"),
        *required(sa.String(64), "request_id"),
        *required(sa.Text(), "sketch", "choices", "schedule"),
        *required(sa.String(16), "schedule_hash"),
        *required(sa.String(32), "status"),
        sa.Column("latency", sa.Float()),
        *required(sa.Text(), "samples", "error"),
        *required(sa.Float(), "build_seconds", "check_seconds", "run_seconds"),
        *required(sa.Text(), "conditions"),
        *required(sa.Float(), "created"),
        sa.UniqueConstraint("task_id", "schedule_hash", "request_id", name="uq_trials_key"),
    )
    best = where("status = 'ok'")
    op.create_index("ix_trials_best", "trials", ["task_id", "latency"], **best)
    create_indices("trials", "job_id")
