"""Counts with their nouns, for messages and reports."""

from __future__ import annotations


def with_count(count: int, noun: str) -> str:
    """The count with its noun: 1 thread, 2 threads."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
