"""What settings name, as the compiler takes it: the target and the limits."""

from __future__ import annotations

from compiler.limits import Limits
from compiler.target import Target, host_target
from configs.settings import Settings, cache_folder, load_target, targets


def target_of(settings: Settings) -> Target:
    """The target that the settings name; this machine if none.

    Raises SettingsError for a file that describes none which LLVM could make code for.
    """
    name = settings.compile.target
    if name is None:
        return host_target()
    target = Target.from_json(load_target(name).model_dump())
    if name not in targets():
        from measure.sandbox.check_target import check_target

        check_target(target, name, cache_folder(settings))
    return target


def limits_of(settings: Settings) -> Limits:
    """The settings' limits; where they name none, this machine's."""
    given = settings.limits
    rest = {} if given.bytes is None else {"bytes": given.bytes}
    return Limits(nodes=given.nodes, rank=given.rank, seconds=given.seconds, **rest)
