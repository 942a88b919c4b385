"""Targets, machines, workloads, tasks, jobs and trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("targets", "machines"):
        op.create_table(
            table,
            sa.Column("id", sa.Integer(), nullable=False),
            sa.Column("key", sa.String(200 if table == "targets" else 64), nullable=False),
            sa.Column("description", sa.Text(), nullable=False),
            sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
            sa.UniqueConstraint("key", name=f"uq_{table}_key"),
        )
    op.create_table(
        "workloads",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kernel", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workloads"),
        sa.UniqueConstraint("key", name="uq_workloads_key"),
    )
    _create_tasks()
    _create_jobs()
    _create_trials()


def _create_tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.String(32), nullable=False),
        sa.Column("compiler_version", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_tasks_workload_id"),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_tasks_target_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
        sa.UniqueConstraint(
            "workload_id",
            "target_id",
            "threads",
            "numerics",
            "compiler_version",
            name="uq_tasks_key",
        ),
    )
    op.create_index("ix_tasks_target_id", "tasks", ["target_id"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uid", sa.String(32), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("model_hash", sa.String(64), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("updated", sa.Float(), nullable=False),
        sa.Column("finished", sa.Float(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("uid", name="uq_jobs_uid"),
    )
    op.create_index("ix_jobs_model_hash", "jobs", ["model_hash"])
    op.create_table(
        "job_tasks",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("occurrences", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_tasks_job_id"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_job_tasks_task_id"),
        sa.PrimaryKeyConstraint("job_id", "task_id", name="pk_job_tasks"),
    )
    op.create_index("ix_job_tasks_task_id", "job_tasks", ["task_id"])


def _create_trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.Column("machine_id", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("sketch", sa.Text(), nullable=False),
        sa.Column("choices", sa.Text(), nullable=False),
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("schedule_hash", sa.String(16), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("latency", sa.Float(), nullable=True),
        sa.Column("samples", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("build_seconds", sa.Float(), nullable=False),
        sa.Column("check_seconds", sa.Float(), nullable=False),
        sa.Column("run_seconds", sa.Float(), nullable=False),
        sa.Column("conditions", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_trials_task_id"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_trials_job_id"),
        sa.ForeignKeyConstraint(["machine_id"], ["machines.id"], name="fk_trials_machine_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint("task_id", "schedule_hash", "request_id", name="uq_trials_key"),
    )
    only_ok = sa.text("status = 'ok'")
    op.create_index(
        "ix_trials_best",
        "trials",
        ["task_id", "latency"],
        sqlite_where=only_ok,
        postgresql_where=only_ok,
    )
    op.create_index("ix_trials_job_id", "trials", ["job_id"])


def downgrade() -> None:
    for table in ("trials", "job_tasks", "jobs", "tasks", "workloads", "machines", "targets"):
        op.drop_table(table)
