"""The target that settings name."""

from __future__ import annotations

from compiler.target import Target, host_target
from configs.settings import Settings, load_target


def target_of(settings: Settings) -> Target:
    """The target that the settings name; this machine if none."""
    if settings.compile.target is None:
        return host_target()
    named = load_target(settings.compile.target)
    return Target(**named.model_dump())
