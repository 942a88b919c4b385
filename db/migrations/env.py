"""Run by Alembic for every command: migrates the connection that `tunefarm.db.prepare` hands over.

The caller owns the transaction, so that a migration happens as a whole or not at all.
"""

from __future__ import annotations

from alembic import context

from tunefarm.db.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
