"""Instructions that add sums of narrow products to wider numbers, and the features they need.

Names are those of the instruction sets. Types are of the factors and of what is added to; `terms`
products are added to each of these. x86: Intel's Software Developer's Manual; 64-bit Arm: its
Architecture Reference Manual for A-profile.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tunefarm.compiler.types.dtypes import DType


class DotProduct(NamedTuple):
    """An instruction; it exists where the target has one of `features`.

    `matrix`: it multiplies whole matrices, held in tiles (AMX) or in parts of vectors (I8MM).
    """

    instruction: str
    left: DType
    right: DType
    accumulator: DType
    terms: int
    features: tuple[str, ...]
    matrix: bool = False


_I8, _U8, _I16, _I32 = DType.I8, DType.U8, DType.I16, DType.I32
_BF16, _F16, _F32 = DType.BF16, DType.F16, DType.F32
_VNNI = ("avx512vnni", "avxvnni")

DOT_PRODUCTS = {
    "x86_64": (
        DotProduct("tdpbusd", _U8, _I8, _I32, 4, ("amx-int8",), matrix=True),
        DotProduct("tdpbsud", _I8, _U8, _I32, 4, ("amx-int8",), matrix=True),
        DotProduct("tdpbssd", _I8, _I8, _I32, 4, ("amx-int8",), matrix=True),
        DotProduct("tdpbuud", _U8, _U8, _I32, 4, ("amx-int8",), matrix=True),
        DotProduct("tdpbf16ps", _BF16, _BF16, _F32, 2, ("amx-bf16",), matrix=True),
        DotProduct("tdpfp16ps", _F16, _F16, _F32, 2, ("amx-fp16",), matrix=True),
        DotProduct("vpdpbusd", _U8, _I8, _I32, 4, _VNNI),
        DotProduct("vpdpbsud", _I8, _U8, _I32, 4, ("avxvnniint8",)),
        DotProduct("vpdpbssd", _I8, _I8, _I32, 4, ("avxvnniint8",)),
        DotProduct("vpdpbuud", _U8, _U8, _I32, 4, ("avxvnniint8",)),
        DotProduct("vpdpwssd", _I16, _I16, _I32, 2, _VNNI),
        DotProduct("vdpbf16ps", _BF16, _BF16, _F32, 2, ("avx512bf16",)),
        DotProduct("vpmaddwd", _I16, _I16, _I32, 2, ("avx2",)),
    ),
    "aarch64": (
        DotProduct("smmla", _I8, _I8, _I32, 8, ("i8mm",), matrix=True),
        DotProduct("ummla", _U8, _U8, _I32, 8, ("i8mm",), matrix=True),
        DotProduct("usmmla", _U8, _I8, _I32, 8, ("i8mm",), matrix=True),
        DotProduct("bfmmla", _BF16, _BF16, _F32, 4, ("bf16",), matrix=True),
        DotProduct("sdot", _I8, _I8, _I32, 4, ("dotprod",)),
        DotProduct("udot", _U8, _U8, _I32, 4, ("dotprod",)),
        DotProduct("usdot", _U8, _I8, _I32, 4, ("i8mm",)),
        DotProduct("bfdot", _BF16, _BF16, _F32, 2, ("bf16",)),
    ),
}
"""By architecture, the fastest first."""


def dot_products(
    architecture: str, features: Collection[str], left: DType, right: DType, accumulator: DType
) -> tuple[DotProduct, ...]:
    """The instructions for these types that a CPU with such features has, the fastest first."""
    types = (left, right, accumulator)
    return tuple(
        item
        for item in DOT_PRODUCTS.get(architecture, ())
        if (item.left, item.right, item.accumulator) == types
        and any(name in features for name in item.features)
    )
