"""The graph's operators; importing the package registers all of them."""

from compiler.operators import (
    activation,
    conv,
    conv_transpose,
    elementwise,
    gather,
    layout,
    matmul,
    normalise,
    pool,
    reduce,
    shape,
)

__all__ = [
    "activation",
    "conv",
    "conv_transpose",
    "elementwise",
    "gather",
    "layout",
    "matmul",
    "normalise",
    "pool",
    "reduce",
    "shape",
]
