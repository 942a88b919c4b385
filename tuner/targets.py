"""The target that settings name."""

from __future__ import annotations

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
