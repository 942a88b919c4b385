"""What a kernel multiplies in types narrower than those of its sums."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Cast, Load
from tunefarm.compiler.kernels.evaluate_product import product_factors
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.types.dtypes import DType


def narrow_factors(kernel: FusedKernel) -> tuple[DType, ...]:
    """The types of the factors that the kernel's anchor widens and sums; () if it does not."""
    anchor = next((stage for stage in kernel.stages if stage.name == kernel.anchor), None)
    if anchor is None or anchor.combiner != "sum":
        return ()
    factors = product_factors(anchor.body)
    narrow = tuple(
        factor.operand.dtype
        for factor in factors
        if isinstance(factor, Cast)
        and isinstance(factor.operand, Load)
        and factor.operand.dtype.bytes < factor.dtype.bytes
    )
    return narrow if len(narrow) > 1 else ()
