"""Signatures of operators that ONNX does not have: what onnxruntime documents of its own ones."""

from __future__ import annotations

from types import MappingProxyType

from onnx import AttributeProto

from compiler.frontend.signature import Formal, Signature

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
_SIGNATURES = {("com.microsoft", "MatMulNBits"): _MATMUL_NBITS}


def contributed_signature(domain: str, operator: str) -> Signature | None:
    """The signature of an operator of another's domain, None for those that are not known."""
    return _SIGNATURES.get((domain, operator))
