"""The configuration reference, made from the settings and the docstrings of their fields."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tunefarm.configs import settings
from tunefarm.configs.settings import Settings, presets, targets

_INTRODUCTION = """# Configuration reference

This page is generated from the settings. A setting comes from four places; later ones win:

1. the default;
2. a preset or TOML file: `--config quick`, `--config job.toml`, `config=` in Python;
3. an environment variable: `TUNEFARM_`, then section and name with two underscores in between;
4. an option of a command, or an argument of a Python function.

Unknown names and values out of range are errors that name the place they came from.

```toml
[search]
minutes = 30.0

[search.cost_model]
rounds = 64

[compile]
threads = 4
```

"""


def configuration_page() -> str:
    """The Markdown text of the page."""
    documentation = field_documentation(inspect.getsource(settings))
    lines = [_INTRODUCTION + f"Presets: {_listed(presets())}. Targets: {_listed(targets())}."]
    for path, section in _sections(Settings, ()):
        lines += ["", f"## \\[{'.'.join(path)}\\]", "", _paragraph(section.__doc__ or "")]
        schemas = section.model_json_schema(by_alias=False)["properties"]
        for name, field in section.model_fields.items():
            if not _is_section(field.annotation):
                shown = (*path, str(field.validation_alias or name))
                lines += _setting(shown, schemas[name], documentation.get((section.__name__, name)))
    return "\n".join([*lines, ""])


def field_documentation(source: str) -> dict[tuple[str, str], str]:
    """The docstring below each annotated field of the classes in a source, by class and field."""
    found = {}
    for owner in ast.parse(source).body:
        if not isinstance(owner, ast.ClassDef):
            continue
        for field, below in zip(owner.body, owner.body[1:], strict=False):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[owner.name, name] = inspect.cleandoc(text)
    return found


def _sections(section: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The class of every section with its path, those inside of it behind it."""
    if path:
        yield path, section
    for name, field in section.model_fields.items():
        if _is_section(field.annotation):
            yield from _sections(field.annotation, (*path, name))


def _is_section(annotation: object) -> bool:
    return hasattr(annotation, "model_fields")


def _setting(path: tuple[str, ...], field: Mapping[str, Any], text: str | None) -> list[str]:
    return [
        "",
        f"### {'.'.join(path)}",
        "",
        *([_paragraph(text), ""] if text else []),
        f"- Type: {_type(field)}",
        f"- Default: {_default(field['default'])}",
        f"- Environment: `TUNEFARM_{'__'.join(path).upper()}`",
    ]


def _default(value: object) -> str:
    return "not set" if value is None else f"`{json.dumps(value)}`"


def _type(field: Mapping[str, Any]) -> str:
    """A type of JSON schema in words."""
    if "anyOf" in field:
        kinds = [_type(kind) for kind in field["anyOf"] if kind.get("type") != "null"]
        return f"{' or '.join(kinds)}; optional"
    if "enum" in field:
        return " or ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if field["type"] == "array":
        return f"array of {_type(field['items'])}s"
    return f"{field['type']}{_range(field)}"


def _range(field: Mapping[str, Any]) -> str:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}
    words["exclusiveMaximum"] = "below"
    bounds = [f"{word} {field[key]:,}" for key, word in words.items() if key in field]
    return f" {' '.join(bounds)}" if bounds else ""


def _paragraph(text: str) -> str:
    """Wrapped lines as one."""
    return " ".join(text.split())


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
