"""What `tune build --emit` takes: the names of forms, and their former names."""

from __future__ import annotations

from tunefarm.configs.errors import SettingsError

EMIT = {
    "artifact": "artefact",
    "c": "c-header+shared-library",
    "object": "object",
    "llvm": "llvm",
    "asm": "asm",
    "graph": "graph",
}
"""The forms as they are typed, and as `building.request` names them: importing that takes time."""


def form_of(emit: str) -> str:
    """The form of this name, present or former. Raises SettingsError for another one."""
    if emit in EMIT.values():
        return emit
    if emit not in EMIT:
        from tunefarm.configs.layers import suggestion

        raise SettingsError(
            f"--emit {emit}: there is no such form", hint=suggestion(emit, list(EMIT))
        )
    return EMIT[emit]
