"""The limits that settings name."""

from __future__ import annotations

from compiler.limits import Limits
from configs.settings import Settings


def limits_of(settings: Settings) -> Limits:
    """The settings' limits; where they name none, this machine's."""
    given = settings.limits
    rest = {} if given.bytes is None else {"bytes": given.bytes}
    return Limits(nodes=given.nodes, rank=given.rank, seconds=given.seconds, **rest)
