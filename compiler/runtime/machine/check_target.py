"""Whether this machine can run code made for a target; checked before any code runs."""

from __future__ import annotations

from tunefarm.compiler.amx_state import TILE_FEATURES
from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.target import Target, host_target, host_tile_refusal
from tunefarm.configs.target_key import platform_name


def check_target(
    target: Target, host: Target | None = None, tile_refusal: str | None = None
) -> None:
    """Raise `ArtefactError` unless `host` (this machine) can run code made for `target`.

    `tile_refusal` says why matrix tiles that the host's CPU tells of cannot be used.
    """
    host = host_target() if host is None else host
    made_for, here = platform_of(target), platform_of(host)
    if made_for != here:
        raise ArtefactError(
            f"the model was built for {made_for}, this machine is {here}",
            hint="build it again for this machine",
        )
    if lacking := lacking_features(target, host, tile_refusal):
        raise ArtefactError(
            f"the model was built for {target.cpu} and needs CPU features that this "
            f"{host.cpu} lacks: {lacking}",
            hint="build it with --fallback, again on this machine, or for an older target",
        )


def can_run(target: Target, host: Target | None = None) -> bool:
    """Whether `host` (this machine) can run code made for `target`."""
    host = host_target() if host is None else host
    same = platform_of(target) == platform_of(host)
    return same and set(target.features) <= set(host.features)


def lacking_features(target: Target, host: Target, tile_refusal: str | None = None) -> str:
    """What the target needs and `host`, of the same platform, lacks; "" if nothing."""
    missing = sorted(set(target.features) - set(host.features))
    if not missing:
        return ""
    lacking = ", ".join(missing)
    refusal = host_tile_refusal() if tile_refusal is None else tile_refusal
    if refusal and any(name.startswith(TILE_FEATURES) for name in missing):
        lacking += f" (matrix tiles: {refusal})"
    return lacking


def platform_of(target: Target) -> str:
    """Architecture and operating system, e.g. `x86_64 linux`; versions and vendor left out."""
    return platform_name(target.triple)
