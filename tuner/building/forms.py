"""The forms that a model can be built to."""

from __future__ import annotations

import difflib

from compiler.errors import SettingsError
from configs.settings import Settings

ARTEFACT = "artefact"
LIBRARY = "c-header+shared-library"
OBJECT = "object"
FORMS = (ARTEFACT, "llvm", "asm", OBJECT, LIBRARY, "graph")


def check_form(
    form: str, output: str, model: str, settings: Settings, *, fallback: bool = False
) -> tuple[str, ...]:
    """Refuse a form, a folder or a machine that cannot do, before the long work starts.

    Returns the files that may be overwritten. Raises TunefarmError.
    """
    if form not in FORMS:
        near = difflib.get_close_matches(form, FORMS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(
            f"there is no form {form!r} to emit", hint=f"{meant}forms: {', '.join(FORMS)}"
        )
    if fallback and form != ARTEFACT:
        raise SettingsError(f"--fallback is for artefacts, not for {form}")
    if form in (LIBRARY, OBJECT):
        from tuner.building.emit_forms import check_c

        return check_c(form, output, model, settings)
    return (output,)
