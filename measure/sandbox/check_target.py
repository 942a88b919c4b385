"""Whether LLVM can make code for a target that a user has described: asked in another process."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

from tunefarm.compiler.content_cache import ContentCache, cache_key
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.target import Target
from tunefarm.measure.sandbox.module_command import module_command

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
