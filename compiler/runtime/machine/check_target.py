"""Whether this machine can run code made for a target; checked before any code runs.

Features that no code of ours has use for are not asked about: Linux or a hypervisor may hide them.
"""

from __future__ import annotations

import platform
import sys

from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.machine.amx_state import TILE_FEATURES, host_tile_problem, linux_flags
from tunefarm.compiler.runtime.machine.cpu_features import needed_features
from tunefarm.compiler.target import Target, host_target, host_tile_refusal
from tunefarm.configs.target_key import platform_name

_LINUX_NAMES = {
    "amx-bf16": "amx_bf16",
    "amx-complex": "amx_complex",
    "amx-fp16": "amx_fp16",
    "amx-int8": "amx_int8",
    "amx-tile": "amx_tile",
    "avx512bf16": "avx512_bf16",
    "avx512bitalg": "avx512_bitalg",
    "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxifma": "avx_ifma",
    "avxvnni": "avx_vnni",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
}
"""What Linux calls features in /proc/cpuinfo (arch/x86/include/asm/cpufeatures.h), where LLVM has
another name."""


def check_target(
    target: Target, host: Target | None = None, tile_refusal: str | None = None
) -> None:
    """Raise `ArtefactError` unless `host` (this machine) can run code made for `target`.

    `tile_refusal` says why matrix tiles that the host's CPU tells of cannot be used.
    """
    if host is None and _is_shown_by_linux(target):
        return
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
    if host is None and _is_shown_by_linux(target):
        return True
    host = host_target() if host is None else host
    same = platform_of(target) == platform_of(host)
    return same and needed_features(target) <= set(host.features)


def _is_shown_by_linux(target: Target) -> bool:
    """Whether Linux shows all features of a target on x86-64, so that LLVM need not be asked.

    Matrix tiles have to be asked for as well.
    """
    if sys.platform != "linux" or platform_of(target) != f"{platform.machine()} linux":
        return False
    if not {_LINUX_NAMES.get(name, name) for name in needed_features(target)} <= linux_flags():
        return False
    return not any(map(_is_of_tiles, target.features)) or not host_tile_problem()


def _is_of_tiles(feature: str) -> bool:
    return feature.startswith(TILE_FEATURES)


def lacking_features(target: Target, host: Target, tile_refusal: str | None = None) -> str:
    """What the target needs and `host`, of the same platform, lacks; "" if nothing."""
    missing = sorted(needed_features(target) - set(host.features))
    if not missing:
        return ""
    lacking = ", ".join(missing)
    refusal = host_tile_refusal() if tile_refusal is None else tile_refusal
    if refusal and any(map(_is_of_tiles, missing)):
        lacking += f" (matrix tiles: {refusal})"
    return lacking


def platform_of(target: Target) -> str:
    """Architecture and operating system, e.g. `x86_64 linux`; versions and vendor left out."""
    return platform_name(target.triple)
