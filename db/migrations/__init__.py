"""Alembic migrations; `tunefarm.db.migrate` runs them."""
