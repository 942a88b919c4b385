"""Tuning databases: records of what was measured. Knows keys, JSON and numbers, no IR."""
