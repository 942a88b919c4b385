"""Converters by family; importing the package registers all of them."""

from compiler.frontend.operators import (
    cast,
    constant,
    conv,
    elementwise,
    gather,
    matmul,
    normalise,
    pad,
    pool,
    quantise,
    recurrent,
    reduce,
    resize,
    scatter,
    shape,
    softmax,
)

__all__ = [
    "cast",
    "constant",
    "conv",
    "elementwise",
    "gather",
    "matmul",
    "normalise",
    "pad",
    "pool",
    "quantise",
    "recurrent",
    "reduce",
    "resize",
    "scatter",
    "shape",
    "softmax",
]
