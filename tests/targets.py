"""Targets by their names."""

from __future__ import annotations

from functools import cache

from tunefarm.compiler.target import Target
from tunefarm.configs.settings import load_target


@cache
def target_named(name: str) -> Target:
    """A target of configs/targets."""
    return Target.from_json(load_target(name).model_dump())
