"""Alembic migrations; `tunefarm.db.prepare` runs them."""
