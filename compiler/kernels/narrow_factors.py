"""What a kernel multiplies in types narrower than those of its sums."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Cast, Load
from tunefarm.compiler.kernels.evaluate_product import product_factors
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.dtypes import DType


def narrow_factors(kernel: FusedKernel) -> tuple[DType, ...]:
    """The types of the factors that the kernel's anchor widens and sums; () if it does not."""
    anchor = next((stage for stage in kernel.stages if stage.name == kernel.anchor), None)
    return () if anchor is None else _factors(anchor)


def all_narrow_factors(kernel: FusedKernel) -> tuple[DType, ...]:
    """Those of all stages of the kernel: attention has several products."""
    return tuple(dtype for stage in kernel.stages for dtype in _factors(stage))


def _factors(stage: Stage) -> tuple[DType, ...]:
    if stage.combiner != "sum":
        return ()
    narrow = tuple(
        factor.operand.dtype
        for factor in product_factors(stage.body)
        if isinstance(factor, Cast)
        and isinstance(factor.operand, Load)
        and factor.operand.dtype.bytes < factor.dtype.bytes
    )
    return narrow if len(narrow) > 1 else ()
