"""The page of supported operators, made from the converters that are registered."""

from __future__ import annotations

from collections.abc import Iterable

from tunefarm.compiler.frontend import coverage
from tunefarm.compiler.frontend.coverage import Coverage
from tunefarm.tuner.docs.command_pages import escaped

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
_INTRODUCTION = """# Supported operators

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
    lines = [_INTRODUCTION, "| how | what it means |", "| --- | --- |"]
    used = {item.how for item in supported}
    lines += [f"| {how} | {meaning} |" for how, meaning in _HOW.items() if how in used]
    for domain in sorted({item.domain for item in supported}):
        lines += ["", f"## {_DOMAINS.get(domain, domain)}", ""]
        lines += _table(item for item in supported if item.domain == domain)
    lines += ["", "## Not supported", "", "| operator | reason |", "| --- | --- |"]
    lines += [f"| {_name(item)} | no converter |" for item in found if not item.how]
    reasons = coverage.refused_with_reason()
    lines += [f"| `{name}` | {escaped(reason)} |" for name, reason in reasons]
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
