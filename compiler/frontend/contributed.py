"""Signatures of operators that ONNX does not have: what onnxruntime documents of its own ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import MappingProxyType

from onnx import AttributeProto

from tunefarm.compiler.frontend.contributed_table import (
    MICROSOFT,
    ONNX,
    REFUSED,
    REFUSED_DOMAINS,
    TYPES,
)
from tunefarm.compiler.frontend.signature import Formal, Signature

_FLOATS = frozenset(("tensor(float)", "tensor(float16)", "tensor(bfloat16)"))
_INTEGERS = frozenset(("tensor(uint8)", "tensor(int32)"))
_INT = AttributeProto.INT

_MATMUL_NBITS = Signature(
    since_version=1,
    deterministic=True,
    has_body=False,
    min_inputs=3,
    max_inputs=6,
    min_outputs=1,
    max_outputs=1,
    inputs=(
        Formal("A", "T1", _FLOATS, True, True),
        Formal("B", "T2", _INTEGERS, True, True),
        Formal("scales", "T1", _FLOATS, True, True),
        Formal("zero_points", "T3", _FLOATS | _INTEGERS, False, True),
        Formal("g_idx", "T4", frozenset(("tensor(int32)",)), False, True),
        Formal("bias", "T1", _FLOATS, False, True),
    ),
    variadic=False,
    attributes=MappingProxyType(
        dict.fromkeys(("K", "N", "bits", "block_size", "accuracy_level", "weight_prepacked"), _INT)
    ),
    required=("K", "N", "block_size"),
)
_FLOAT = frozenset(("tensor(float)",))
_QUANTISED = frozenset(
    f"tensor({kind})" for kind in ("uint8", "int8", "uint16", "int16", "int32", "uint4", "int4")
)
_BOOLS = frozenset(("tensor(bool)",))
_BYTES = frozenset(("tensor(uint8)", "tensor(int8)"))
_SUMS = frozenset(("tensor(int32)",))


def _quantised(name: str, required: bool = True) -> tuple[Formal, ...]:
    """A quantised operand, its scale and its zero point."""
    return (
        Formal(name, f"T{name}", _BYTES, required, True),
        *_parameters(name),
    )


def _parameters(name: str, required: bool = True) -> tuple[Formal, ...]:
    return (
        Formal(f"{name}_scale", "F", _FLOAT, required, True),
        Formal(f"{name}_zero_point", f"T{name}_zero", _BYTES, False, True),
    )


def _on_integers(*inputs: Formal, required: int | None = None, **attributes: int) -> Signature:
    """The signature of an operator of one result; `attributes` are by name, with their types."""
    return Signature(
        since_version=1,
        deterministic=True,
        has_body=False,
        min_inputs=len(inputs) - 1 if required is None else required,
        max_inputs=len(inputs),
        min_outputs=1,
        max_outputs=1,
        inputs=inputs,
        variadic=False,
        attributes=MappingProxyType(attributes),
        required=(),
    )


_BINARY = _on_integers(*_quantised("A"), *_quantised("B"), *_parameters("C"))
_UNARY = _on_integers(*_quantised("X"), *_parameters("Y"))
_WINDOWS = {
    "auto_pad": AttributeProto.STRING,
    **dict.fromkeys(("ceil_mode", "channels_last", "count_include_pad"), _INT),
    **dict.fromkeys(("kernel_shape", "pads", "strides"), AttributeProto.INTS),
}


def _with(signature: Signature, required: tuple[str, ...] = (), **attributes: int) -> Signature:
    return replace(signature, attributes=MappingProxyType(attributes), required=required)


def _optional(name: str, variable: str, types: frozenset[str]) -> Formal:
    return Formal(name, variable, types, False, True)


_JOINED = Formal("inputs", "TV", _BYTES | _FLOAT, True, False)
_ROTARY_EMBEDDING = Signature(
    since_version=1,
    deterministic=True,
    has_body=False,
    min_inputs=4,
    max_inputs=4,
    min_outputs=1,
    max_outputs=1,
    inputs=(
        Formal("input", "T", _FLOATS, True, True),
        Formal("position_ids", "M", frozenset(("tensor(int64)",)), True, True),
        Formal("cos_cache", "T", _FLOATS, True, True),
        Formal("sin_cache", "T", _FLOATS, True, True),
    ),
    variadic=False,
    attributes=MappingProxyType(
        {
            **dict.fromkeys(
                ("interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim"), _INT
            ),
            "scale": AttributeProto.FLOAT,
        }
    ),
    required=(),
)
_SIGNATURES = {
    "MatMulNBits": _MATMUL_NBITS,
    "RotaryEmbedding": _ROTARY_EMBEDDING,
    "QuantizeLinear": _on_integers(
        Formal("x", "T1", _FLOATS, True, True),
        Formal("y_scale", "T1", _FLOATS, True, True),
        _optional("y_zero_point", "T2", _QUANTISED),
        axis=_INT,
        saturate=_INT,
        block_size=_INT,
    ),
    "DequantizeLinear": _on_integers(
        Formal("x", "T1", _QUANTISED, True, True),
        Formal("x_scale", "T2", _FLOATS, True, True),
        _optional("x_zero_point", "T1", _QUANTISED),
        axis=_INT,
        block_size=_INT,
    ),
    "QLinearAdd": _BINARY,
    "QLinearMul": _BINARY,
    "QLinearSigmoid": _UNARY,
    "QLinearLeakyRelu": _with(_UNARY, alpha=AttributeProto.FLOAT),
    "QLinearGlobalAveragePool": _with(_UNARY, channels_last=_INT),
    "QLinearAveragePool": _with(_UNARY, ("kernel_shape",), **_WINDOWS),
    "QLinearSoftmax": _with(_UNARY, ("opset",), axis=_INT, opset=_INT),
    "QLinearReduceMean": _with(
        _UNARY, ("axes", "keepdims"), axes=AttributeProto.INTS, keepdims=_INT
    ),
    "QLinearWhere": _on_integers(
        Formal("condition", "B", _BOOLS, True, True),
        *_quantised("X"),
        *_quantised("Y"),
        *_parameters("Z"),
    ),
    "MatMulIntegerToFloat": _on_integers(
        Formal("A", "TA", _BYTES, True, True),
        Formal("B", "TB", _BYTES, True, True),
        Formal("a_scale", "F", _FLOAT, True, True),
        Formal("b_scale", "F", _FLOAT, True, True),
        _optional("a_zero_point", "TA", _BYTES),
        _optional("b_zero_point", "TB", _BYTES),
        _optional("bias", "F", _FLOAT),
        required=4,
    ),
    "DynamicQuantizeMatMul": _on_integers(
        Formal("A", "F", _FLOAT, True, True),
        Formal("B", "TB", _BYTES, True, True),
        Formal("b_scale", "F", _FLOAT, True, True),
        _optional("b_zero_point", "TB", _BYTES),
        _optional("bias", "F", _FLOAT),
        required=3,
    ),
    "QLinearConcat": replace(
        _on_integers(*_parameters("Y"), _JOINED, axis=_INT),
        max_inputs=2**31 - 1,
        variadic=True,
        required=("axis",),
    ),
    "QGemm": _on_integers(
        *_quantised("A"),
        *_quantised("B"),
        Formal("C", "TC", _SUMS, False, True),
        *_parameters("Y", False),
        required=6,
        transA=_INT,
        transB=_INT,
        alpha=AttributeProto.FLOAT,
    ),
}
"""Those of the domain com.microsoft, by name."""


_KINDS = {
    "int": AttributeProto.INT,
    "ints": AttributeProto.INTS,
    "float": AttributeProto.FLOAT,
    "floats": AttributeProto.FLOATS,
    "string": AttributeProto.STRING,
    "strings": AttributeProto.STRINGS,
}


@cache
def contributed_signature(domain: str, operator: str) -> Signature | None:
    """The signature of an operator of another's domain, None for those that are not known."""
    if domain == "com.microsoft" and operator in _SIGNATURES:
        return _SIGNATURES[operator]
    form = {"com.microsoft": MICROSOFT, "": ONNX}.get(domain, {}).get(operator)
    return None if form is None else _signature(*form)


def refusal(domain: str, operator: str) -> str:
    """Why an operator that other software writes cannot be imported; "" where nothing is known."""
    if domain == "com.microsoft" and operator in REFUSED:
        return REFUSED[operator]
    return REFUSED_DOMAINS.get(domain, "")


def _signature(inputs: str, attributes: str, outputs: tuple[int, int]) -> Signature:
    """The signature that a line of the table says."""
    formals = []
    for item in inputs.split():
        name, _, type = item.removesuffix("?").partition(":")
        allowed = frozenset(f"tensor({element})" for element in TYPES[type[0]])
        formals.append(Formal(name, type, allowed, not item.endswith("?"), True))
    needed = max(at for at, formal in enumerate(formals, 1) if formal.required)
    kinds = dict(item.rstrip("!").split(":") for item in attributes.split())
    return Signature(
        since_version=1,
        deterministic=True,
        has_body=False,
        min_inputs=needed,
        max_inputs=len(formals),
        min_outputs=outputs[0],
        max_outputs=outputs[1],
        inputs=tuple(formals),
        variadic=False,
        attributes=MappingProxyType({name: _KINDS[kind] for name, kind in kinds.items()}),
        required=tuple(i.split(":")[0] for i in attributes.split() if i.endswith("!")),
    )
