"""Which operators a model may use: read from the converters, for the reference page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnx import defs

import tunefarm.compiler.frontend.operators  # noqa: F401  registers the converters
from tunefarm.compiler.frontend.constant_evaluation import can_evaluate
from tunefarm.compiler.frontend.contributed import REFUSED, REFUSED_DOMAINS
from tunefarm.compiler.frontend.control_flow import control_flow
from tunefarm.compiler.frontend.converter import converted_operators, covered_versions
from tunefarm.compiler.frontend.function_expansion import has_twin
from tunefarm.compiler.frontend.signature import has_body
from tunefarm.compiler.strings.operators import OPERATORS, computes_with_strings

CONVERTED = "compiled"
CONTROL_FLOW = "control flow"
DECOMPOSED = "decomposed"
STRINGS = "strings"
CONSTANT = "constant inputs only"

MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Coverage:
    """One operator: the since-versions that import, how, and those that are refused."""

    domain: str
    operator: str
    how: str  # "" where no version imports
    versions: tuple[int, ...]
    refused: tuple[int, ...]


def coverage() -> tuple[Coverage, ...]:
    """Every operator that has a schema or a converter, by domain and name."""
    schemas: dict[tuple[str, str], list[defs.OpSchema]] = {}
    for schema in defs.get_all_schemas_with_history():
        schemas.setdefault((schema.domain, schema.name), []).append(schema)
    strings = (name for name, known in OPERATORS.items() if known.computes)
    names = sorted({*schemas, *converted_operators(), *_twins(schemas), *strings})
    return tuple(_coverage(*name, schemas.get(name, ())) for name in names)


def refused_with_reason() -> tuple[tuple[str, str], ...]:
    """Operators of onnxruntime, and domains, that no model may use, each with the reason."""
    operators = ((f"{MICROSOFT}.{name}", why) for name, why in REFUSED.items())
    return (*operators, *((f"{name}.*", why) for name, why in REFUSED_DOMAINS.items()))


def _twins(schemas: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Operators of onnxruntime that ONNX has taken over, under their former names."""
    return ((MICROSOFT, name) for _, name in schemas if has_twin(MICROSOFT, name))


def _coverage(domain: str, operator: str, schemas: Sequence[defs.OpSchema]) -> Coverage:
    known = {schema.since_version: schema for schema in schemas if not schema.deprecated}
    converted = covered_versions(domain, operator)
    how = CONVERTED if converted else _without_converter(domain, operator, known.values())
    versions: tuple[int, ...] = ()
    if how == DECOMPOSED:
        versions = tuple(version for version, schema in known.items() if has_body(schema))
        versions = versions or (1,)  # onnxruntime's operators have no schema here
    elif how:
        versions = converted or tuple(known) or (1,)
    refused = (version for version in known if version not in versions)
    return Coverage(domain, operator, how, tuple(sorted(versions)), tuple(sorted(refused)))


def _without_converter(domain: str, operator: str, schemas: Iterable[defs.OpSchema]) -> str:
    if control_flow(domain, operator) is not None:
        return CONTROL_FLOW
    if computes_with_strings(domain, operator):
        return STRINGS
    if has_twin(domain, operator) or any(map(has_body, schemas)):
        return DECOMPOSED
    return CONSTANT if can_evaluate(domain, operator) else ""
