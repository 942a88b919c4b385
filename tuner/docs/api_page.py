"""The Python API reference, made from the signatures and docstrings of the public names."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator, Mapping

from tunefarm import compiler, tuner
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.tuner.calibration.choice import PrecisionChoice
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.result import TuneResult

_INTRODUCTION = """# Python API reference

This page is generated from signatures and docstrings. [From Python](python.md) shows how the parts
work together. Each name below is an attribute of `tunefarm`; the types at the end are what the
functions take, return and raise.
"""
_TYPES = (Executable, TuneResult, PrecisionChoice, Progress, TunefarmError)
_FUNCTIONS = ("tune", "choose", "build", "load")
"""What most programs call, shown first."""
_MADE_ANEW = "<factory>"
"""What the signature of a dataclass shows of a default that each call makes."""
_WIDTH = 88  # columns of a signature


def public_names() -> Mapping[str, object]:
    """What users import from `tunefarm`, the most used first; the tuner's name wins."""
    names = {*tuner.__all__, *compiler.__all__} - {"VERSION"}
    ordered = [*_FUNCTIONS, *sorted(names.difference(_FUNCTIONS))]
    return {name: getattr(tuner if name in tuner.__all__ else compiler, name) for name in ordered}


def api_page() -> str:
    """The Markdown text of the page."""
    lines = [_INTRODUCTION]
    for name, item in public_names().items():
        lines += _entry(f"tunefarm.{name}", item)
    lines += ["## Types", ""]
    for kind in _TYPES:
        lines += [*_entry(kind.__name__, kind, "###"), f"Import: `{kind.__module__}`.", ""]
    return "\n".join(lines)


def _entry(name: str, item: object, level: str = "##") -> list[str]:
    lines = [f"{level} {name}", ""]
    if isinstance(item, type) and issubclass(item, enum.Enum):
        values = ", ".join(f"`{member.name}`" for member in item)
        return [*lines, *_documented(item), f"Values: {values}.", ""]
    if callable(item):
        lines += _signature(name, item)
    lines += _documented(item)
    if isinstance(item, type):
        for member, function in _members(item):
            lines += [f"{level}# {item.__name__}.{member}", "", *_described(member, function)]
    return lines


def _members(owner: type) -> Iterator[tuple[str, object]]:
    """Public methods and properties that the package defines, in the order of the source."""
    seen = set()
    for base in owner.__mro__:
        if not base.__module__.startswith("tunefarm."):
            continue
        for name, member in vars(base).items():
            is_member = inspect.isfunction(member) or isinstance(
                member, property | classmethod | staticmethod
            )
            if is_member and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, getattr(owner, name)


def _described(name: str, member: object) -> list[str]:
    if isinstance(member, property):
        return ["(property)", "", *_documented(member)]
    assert callable(member)
    return [*_signature(name, member), *_documented(member)]


class _Text(str):
    """Source text, shown without quotation marks."""

    def __repr__(self) -> str:
        return str(self)


def _signature(name: str, function: Callable[..., object]) -> list[str]:
    """The call as a block, a parameter a line where it is long; none where none is known."""
    try:
        found = inspect.signature(function)
    except ValueError:
        return []
    parameters = [
        parameter.replace(
            annotation=_shown(parameter.annotation), default=_default(parameter.default)
        )
        for parameter in found.parameters.values()
        if parameter.name != "self"
    ]
    signature = found.replace(
        parameters=parameters, return_annotation=_shown(found.return_annotation)
    )
    text = f"{name}{signature}"
    if len(text) > _WIDTH and parameters:
        inner = signature.replace(return_annotation=inspect.Signature.empty)
        parts = _split(str(inner)[1:-1])
        rest = str(signature).removeprefix(str(inner))
        text = "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){rest}"])
    return ["```py", text, "```", ""]


def _shown(annotation: object) -> object:
    return _Text(annotation) if isinstance(annotation, str) else annotation


def _default(value: object) -> object:
    if isinstance(value, type) and value is not inspect.Parameter.empty:
        return _Text(f"{value.__module__}.{value.__qualname__}")
    return _Text("...") if repr(value) == _MADE_ANEW else value


def _split(parameters: str) -> list[str]:
    """Parameters at the commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in parameters:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _documented(item: object) -> list[str]:
    """The docstring as paragraphs, its indented lines as code."""
    text = inspect.getdoc(item) or ""
    lines = []
    for paragraph in filter(None, re.split(r"\n\s*\n", text)):
        if paragraph.startswith(" "):
            lines += ["```py", inspect.cleandoc(paragraph), "```", ""]
        else:
            lines += [" ".join(paragraph.split()), ""]
    return lines
