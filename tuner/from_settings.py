"""What settings name, as the compiler takes it: targets and those to fall back on, precision and
limits.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from tunefarm.compiler.content_cache import ContentCache, cache_key
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.machine.amx_state import TILE_FEATURES
from tunefarm.compiler.target import Target, baseline_target, host_target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.errors import SettingsError
from tunefarm.configs.settings import (
    HOST,
    Settings,
    cache_folder,
    load_machine,
    load_target,
    targets,
)
from tunefarm.measure.sandbox.by_name import module_command


def target_of(settings: Settings) -> Target:
    """The target that the settings name, the best of several; this machine if none.

    Raises SettingsError as `targets_of` does.
    """
    return targets_of(settings)[0]


def targets_of(settings: Settings) -> tuple[Target, ...]:
    """The targets that the settings name, the best first; this machine if none. Each has the table
    of `compile.machine` if that was measured for it, else its own or the shipped one.

    Raises SettingsError for one that is named twice, for a file that describes none which LLVM
    could make code for, and for a table that was measured for none of them.
    """
    found = _targets_named(settings)
    path = settings.compile.machine
    file = None if path is None else load_machine(path)
    if file is not None and file.target not in (target.key for target in found):
        raise SettingsError(
            f"{path} was measured for {file.target}, and this is for "
            f"{', '.join(target.key for target in found)}",
            hint=f"measure it on that CPU: tune doctor --calibrate --output {path}",
        )
    if file is None:
        return found
    return tuple(
        replace(target, table=file.machine) if target.key == file.target else target
        for target in found
    )


def _targets_named(settings: Settings) -> tuple[Target, ...]:
    compile = settings.compile
    if not compile.targets:
        return (_named(compile.target or HOST, settings),)
    if compile.target is not None:
        raise SettingsError(
            f"compile.target = {compile.target!r} and compile.targets are both given",
            hint="name it among the targets",
        )
    found = [_named(name, settings) for name in compile.targets]
    for number, target in enumerate(found):
        if target.key in {other.key for other in found[:number]}:
            raise SettingsError(f"the target {compile.targets[number]} is given twice")
    return best_first(found)


def best_first(targets: Iterable[Target]) -> tuple[Target, ...]:
    """The targets, each before those of its family that have fewer features; else as given."""
    ordered: list[Target] = []
    for target in targets:
        less = (place for place, other in enumerate(ordered) if _has_less(other, target))
        ordered.insert(next(less, len(ordered)), target)
    return tuple(ordered)


def _has_less(one: Target, other: Target) -> bool:
    same_family = one.triple.split("-")[0] == other.triple.split("-")[0]
    return same_family and set(one.features) < set(other.features)


def _named(name: str, settings: Settings) -> Target:
    if name == HOST:
        return host_target()
    described = load_target(name)
    target = Target.from_json(described.model_dump())
    if name in targets():
        return target
    check_target(target, name, cache_folder(settings))
    return replace(target, table=described.machine)


def numerics_of(settings: Settings, numerics: Numerics | str | None = None) -> Numerics:
    """The settings' precision, or the one given, with the settings' handling of denormals."""
    known = Numerics.of(settings.compile.numerics if numerics is None else numerics)
    return replace(known, denormals=settings.compile.denormals)


def limits_of(settings: Settings) -> Limits:
    """The settings' limits; where they name none, this machine's."""
    given = settings.limits
    rest = {} if given.bytes is None else {"bytes": given.bytes}
    return Limits(
        nodes=given.nodes,
        rank=given.rank,
        seconds=given.seconds,
        loop_steps=given.loop_steps,
        loop_rows=given.loop_rows,
        arena=given.memory,
        **rest,
    )


_RARE_FEATURES = ("avx512fp16", "avxvnni")
"""What some CPUs lack that have all else that one with matrix tiles has: AVX512-VNNI and BF16."""
_COMMON = ("x86-64-v3",)
"""Targets that most CPUs of a family have in common, the fastest first."""


def fallback_targets(target: Target) -> tuple[Target, ...]:
    """The targets of variants for other CPUs, the fastest first; the last one runs on all.

    What a CPU has without its matrix tiles, which a kernel or a virtual machine may withhold, and
    others lack; for shorter vectors what most CPUs of the family have, where the target has all of
    that; and the family's baseline.
    """
    found = []
    if target.matrix_tiles is not None:
        kept = (name for name in target.features if not name.startswith(TILE_FEATURES))
        found.append(
            replace(target, features=tuple(name for name in kept if name not in _RARE_FEATURES))
        )
    for name in _COMMON:
        common = Target.from_json(load_target(name).model_dump())
        of_family = common.triple.split("-")[0] == target.triple.split("-")[0]
        contained = of_family and set(common.features) <= set(target.features)
        if contained and common.vector_bytes < target.vector_bytes:
            found.append(replace(common, triple=target.triple, cores=target.cores))
    return (*found, baseline_target(target))


# Whether LLVM can make code for a target that a user has described: asked in another process.

_SECONDS = 60.0
_NOT_KNOWN = "is not a recognized"  # LLVM goes on without such a processor or feature


def check_target(target: Target, name: str, folder: Path | None) -> None:
    """Raise SettingsError, which calls the target `name`, if there can be no code for it.

    LLVM is asked once for each target in this process and, in the cache `folder`, on this machine.
    """
    if lacking := target.lacking_feature:
        raise SettingsError(
            f"{name} describes no target that LLVM can make code for: {lacking}, which is not "
            "among its features",
            hint="name that feature, too, or leave out what needs it",
        )
    reason = _reason(target, folder)
    if reason:
        raise SettingsError(
            f"{name} describes no target that LLVM can make code for: {reason}",
            hint="triple, cpu and features are LLVM's names; configs/targets has examples",
        )


@cache
def _reason(target: Target, folder: Path | None) -> str:
    """Why there is no code for the target; "" if there is."""
    text = json.dumps(target.to_json(), sort_keys=True)
    if folder is None:
        return _probe(text)
    kept, key = ContentCache(folder), cache_key("target", text)
    found = kept.find(key)
    if found is not None:
        return str(found[0])
    reason = _probe(text)
    kept.add(key, reason)
    return reason


def _probe(target: str) -> str:
    try:
        done = subprocess.run(
            module_command("tunefarm.compiler.llvm.probe_target", target),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it takes longer than {_SECONDS:g} seconds"
    lines = done.stderr.decode(errors="replace").splitlines()
    unknown = [line for line in lines if _NOT_KNOWN in line]
    if unknown:
        return unknown[0].strip()[:300]
    if done.returncode == 0:
        return ""
    said = [line for line in lines if line.startswith("LLVM ERROR")] or lines
    return said[-1].strip()[:300] if said else f"LLVM ends with code {done.returncode}"
