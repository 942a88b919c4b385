"""The messages of a C library's error codes."""

from __future__ import annotations

from tunefarm.compiler.runtime.c_library.c_interface import CInterface
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT


def error_function(interface: CInterface, lacking: str, cases: str) -> str:
    """The function that says what an error code means; `cases` are those of the model."""
    macro = interface.macro
    return f"""\
const char *{interface.name}_error(int code)
{{
    switch (code) {{
    case {macro}_OK:
        return "no error";
    case {macro}_ERROR_NULL:
        return "io, a pointer in it, or the workspace is null";
    case {macro}_ERROR_WORKSPACE:
        return "the workspace is not aligned to {ALIGNMENT} bytes";
    case {macro}_ERROR_CPU:
        return "{lacking}";
{cases}    default:
        return "unknown error code";
    }}
}}
"""
