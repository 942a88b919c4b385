"""The generated reference pages: the Python API, the configuration, the supported operators."""

from __future__ import annotations

import ast
import inspect
import json
import pydoc
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.frontend import coverage
from tunefarm.compiler.frontend.coverage import Coverage
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.configs import settings
from tunefarm.configs.settings import Settings, presets, targets
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


def public_names() -> Mapping[str, object]:
    """What users import from `tunefarm`, the most used first."""
    package = sys.modules["tunefarm"]  # which is there, and which only users import
    names = set(package.__all__) - {"__version__"}
    ordered = [*_FUNCTIONS, *sorted(names.difference(_FUNCTIONS))]
    return {name: getattr(package, name) for name in ordered}


def api_page() -> str:
    """The Markdown text of the page: what `help` prints of each name."""
    lines = [_INTRODUCTION]
    for name, item in public_names().items():
        lines += [f"## tunefarm.{name}", "", *_help(item)]
    lines += ["## Types", ""]
    for kind in _TYPES:
        lines += [f"### {kind.__name__}", "", f"Import: `{kind.__module__}`.", "", *_help(kind)]
    return "\n".join(lines)


def _help(item: object) -> list[str]:
    _, _, text = pydoc.plain(pydoc.render_doc(item)).partition("\n\n")
    return ["```text", text.strip(), "```", ""]


# The configuration reference, made from the settings and the docstrings of their fields.

_CONFIGURATION = """# Configuration reference

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
    lines = [_CONFIGURATION + f"Presets: {_listed(presets())}. Targets: {_listed(targets())}."]
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
        f"- Type: {_setting_type(field)}",
        f"- Default: {_default_setting(field['default'])}",
        f"- Environment: `TUNEFARM_{'__'.join(path).upper()}`",
    ]


def _default_setting(value: object) -> str:
    return "not set" if value is None else f"`{json.dumps(value)}`"


def _setting_type(field: Mapping[str, Any]) -> str:
    """A type of JSON schema in words."""
    if "anyOf" in field:
        kinds = [_setting_type(kind) for kind in field["anyOf"] if kind.get("type") != "null"]
        return f"{' or '.join(kinds)}; optional"
    if "enum" in field:
        return " or ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if field["type"] == "array":
        return f"array of {_setting_type(field['items'])}s"
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


# The page of supported operators, made from the converters that are registered.

_HOW = {
    coverage.CONVERTED: "compiled to kernels, or folded where inputs are constant",
    coverage.DECOMPOSED: "replaced by the operators of its ONNX definition, which are compiled",
    coverage.CONTROL_FLOW: "compiled to branches and loops of kernel calls, or unrolled",
    coverage.STRINGS: "runs on the host, at the beginning of a graph only",
    coverage.CONSTANT: "supported where all inputs are constants",
}
_DOMAINS = {
    "": "ONNX (ai.onnx)",
    "ai.onnx.ml": "ONNX-ML (ai.onnx.ml)",
    coverage.MICROSOFT: "onnxruntime (com.microsoft)",
}
_OPERATORS = """# Supported operators

This page is generated from the converters of the compiler. Versions are the opset versions in
which ONNX changed the operator: a model at opset 21 uses the last version up to 21. For an operator
of your own see [custom operators](functions.md).

An operator in these tables may still be refused in some uses:
[what is refused](models.md#what-is-refused) lists them. To check a model, run
`tune build model.onnx --untuned -o model.tuned`: the error names each node that it refuses.
"""


def operators_page() -> str:
    """The Markdown text of the page."""
    found = coverage.coverage()
    supported = [item for item in found if item.how]
    lines = [_OPERATORS, "| how | what it means |", "| --- | --- |"]
    used = {item.how for item in supported}
    lines += [f"| {how} | {meaning} |" for how, meaning in _HOW.items() if how in used]
    for domain in sorted({item.domain for item in supported}):
        lines += ["", f"## {_DOMAINS.get(domain, domain)}", ""]
        lines += _table(item for item in supported if item.domain == domain)
    lines += ["", "## Not supported", "", "| operator | reason |", "| --- | --- |"]
    lines += [f"| {_name(item)} | no converter |" for item in found if not item.how]
    reasons = coverage.refused_with_reason()
    lines += [f"| `{name}` | {reason} |" for name, reason in reasons]
    return "\n".join([*lines, ""])


def _table(items: Iterable[Coverage]) -> list[str]:
    lines = ["| operator | opset versions | how | refused versions |", "| --- | --- | --- | --- |"]
    for item in items:
        versions, refused = map(_versions, (item.versions, item.refused))
        lines.append(f"| `{item.operator}` | {versions} | {item.how} | {refused} |")
    return lines


def _versions(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))


def _name(item: Coverage) -> str:
    return f"`{item.domain}.{item.operator}`" if item.domain else f"`{item.operator}`"
