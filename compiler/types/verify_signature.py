"""The rules of a Signature: what a run, a C library and a printed graph rely on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import (
    SIZES,
    AxisSource,
    ResultSource,
    Signature,
    SizedPort,
    Source,
    ValueSource,
)
from tunefarm.compiler.types.sizes import Dimension, Symbol, bounds_of, product_of, symbols_of
from tunefarm.compiler.types.tensor_type import TensorType

_GREATEST = 2**62  # so that sizes are computed in 64 bits without a thought


def signature_problem(
    signature: Signature,
    inputs: Sequence[tuple[str, TensorType]],
    outputs: Sequence[tuple[str, TensorType]],
) -> str:
    """Why the signature is none of a graph with these inputs and outputs, or nothing.

    Ports are the graph's, padded as they say; every symbol has one source; inputs and sizes depend
    on symbols that are known before the run; what is computed fits 64 bits.
    """
    return (
        _ports_problem("input", signature.inputs, inputs)
        or _ports_problem("output", signature.outputs, outputs)
        or _sizes_problem(signature, dict(inputs))
        or _sources_problem(signature, dict(outputs))
        or _checks_problem(signature, dict(outputs))
        or _symbols_problem(signature)
    )


def _ports_problem(
    kind: str, ports: Sequence[SizedPort], types: Sequence[tuple[str, TensorType]]
) -> str:
    """The ports are values of the graph, in its order; others of its values are no ports."""
    names, known = [port.name for port in ports], dict(types)
    if names != [name for name in known if name in set(names)]:
        return f"its signature has other {kind}s: {', '.join(names)}"
    if kind == "input" and (missing := set(known) - {*names, SIZES}):
        return f"its signature lacks the inputs {', '.join(sorted(missing))}"
    for port in ports:
        type = known[port.name]
        if problem := _port_problem(port, type):
            return f"{kind} {port.name!r} of the signature, {port}, is not {type}: {problem}"
    return ""


def _port_problem(port: SizedPort, type: TensorType) -> str:
    if len(port.shape) != len(port.padded):
        return f"it has {len(port.padded)} padded axes"
    if port.type != type:
        return f"it is padded to {port.type}"
    for axis, (true, factors) in enumerate(zip(port.shape, port.padded, strict=True)):
        if product_of(factor for factor, _ in factors) != true:
            return f"the factors of axis {axis} are not {true}"
        for factor, extent in factors:
            low, high = bounds_of(factor)
            if low < 0 or high > extent:
                return f"axis {axis} has {factor}, from {low} to {high}, in {extent}"
    return ""


def _sizes_problem(signature: Signature, inputs: Mapping[str, TensorType]) -> str:
    wanted = TensorType(DType.I64, (len(signature.sizes),))
    if signature.sizes and inputs.get(SIZES) != wanted:
        return f"its signature has {len(signature.sizes)} sizes, its input is {inputs.get(SIZES)}"
    if not signature.sizes and SIZES in inputs:
        return f"there are no sizes for its input {SIZES}"
    return ""


def _sources_problem(signature: Signature, outputs: Mapping[str, TensorType]) -> str:
    ports = {port.name: port for port in signature.inputs}
    results = {port.name for port in signature.outputs}
    for source in signature.sources:
        match source:
            case AxisSource(symbol, name, axis):
                port = ports.get(name)
                fits = port is not None and 0 <= axis < len(port.shape)
                fits = fits and port is not None and _is_symbol(port.shape[axis], symbol)
            case ValueSource(_, name, position):
                port = ports.get(name)
                fits = port is not None and port.dtype.is_integer
                fits = fits and port is not None and 0 <= position < _least_size(port)
            case ResultSource(_, name, position):
                type = outputs.get(name)
                fits = type is not None and type.dtype is DType.I64 and name not in results
                fits = fits and type is not None and 0 <= position < type.size
        if not fits:
            return f"the symbol {source.symbol} cannot come from {_source_text(source)}"
    return ""


def _checks_problem(signature: Signature, outputs: Mapping[str, TensorType]) -> str:
    results = {port.name for port in signature.outputs}
    for check in signature.checks:
        type = outputs.get(check.output)
        if type is None or type.dtype is not DType.I64 or check.output in results:
            return f"the condition on {check.operand!r} cannot be in the output {check.output!r}"
    return ""


def _is_symbol(dimension: Dimension, symbol: Symbol) -> bool:
    return not isinstance(dimension, int) and dimension.symbol == symbol


def _least_size(port: SizedPort) -> int:
    return bounds_of(product_of(port.shape))[0]


def _source_text(source: Source) -> str:
    match source:
        case AxisSource(_, name, axis):
            return f"axis {axis} of input {name!r}"
        case ValueSource(_, name, position):
            return f"element {position} of input {name!r}"
        case ResultSource(_, name, position):
            return f"element {position} of output {name!r}"


def _symbols_problem(signature: Signature) -> str:
    sources = [source.symbol for source in signature.sources]
    if len({symbol.name for symbol in sources}) != len(sources):
        return "a symbol of its signature has two sources"
    late = {s.symbol for s in signature.sources if isinstance(s, ResultSource)}
    early = set(sources) - late
    for what, dimension, known in _dimensions(signature, early, late):
        if unknown := symbols_of(dimension) - known:
            names = ", ".join(sorted(map(str, unknown)))
            return f"{what} depends on {names}, which is not known then"
        low, high = bounds_of(dimension)
        if not -_GREATEST < low <= high < _GREATEST:
            return f"{what} may be {max(-low, high)}, which is too much"
    return ""


def _dimensions(
    signature: Signature, early: set[Symbol], late: set[Symbol]
) -> Iterator[tuple[str, Dimension, set[Symbol]]]:
    """Each dimension with what it is of, and the symbols that it may depend on."""
    for size in signature.sizes:
        yield f"the size {size}", size, early
    for item in signature.equalities:
        yield f"the equality of {item.left}", item.left, early
        yield f"the equality of {item.right}", item.right, early
    for ports, known in ((signature.inputs, early), (signature.outputs, early | late)):
        for port in ports:
            for dimension in (*port.shape, *(true for axis in port.padded for true, _ in axis)):
                yield f"the shape of {port.name!r}", dimension, known
            yield f"the shape of {port.name!r}", product_of((*port.shape, port.dtype.bytes)), known
