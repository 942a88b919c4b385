"""Whether this machine can run code made for a target; checked before any code runs.

Features that no code of ours has use for are not asked about: Linux or a hypervisor may hide them.
"""

from __future__ import annotations

import platform
import sys
from functools import cache

from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.machine.amx_state import TILE_FEATURES
from tunefarm.compiler.runtime.machine.cpu_features import needed_features
from tunefarm.compiler.target import Target, host_target, host_tile_refusal
from tunefarm.configs.target_key import platform_name

_LINUX_NAMES = {
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
_FLAGS_WITHIN = 16384  # bytes of /proc/cpuinfo, in which the first CPU's flags are


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

    It shows none whose registers it does not keep. Matrix tiles have to be asked for.
    """
    if sys.platform != "linux" or platform_of(target) != f"{platform.machine()} linux":
        return False
    if any(name.startswith(TILE_FEATURES) for name in target.features):
        return False
    return {_LINUX_NAMES.get(name, name) for name in needed_features(target)} <= _linux_flags()


@cache
def _linux_flags() -> frozenset[str]:
    """The features of this machine's first CPU, by Linux's names; none where they are not said."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = file.read(_FLAGS_WITHIN).splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), ":")
    return frozenset(flags.partition(":")[2].split())


def lacking_features(target: Target, host: Target, tile_refusal: str | None = None) -> str:
    """What the target needs and `host`, of the same platform, lacks; "" if nothing."""
    missing = sorted(needed_features(target) - set(host.features))
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
