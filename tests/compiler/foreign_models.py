"""Functions by name for tests: one in C, rules, and nodes of their domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.compiler.frontend.onnx_models import node
from tests.compiler.runtime.c_models import cc
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

DOMAIN = "my.domain"

SOURCE = r"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int64_t count(int32_t rank, const int64_t *sizes)
{
    int64_t all = 1;
    for (int32_t axis = 0; axis < rank; axis++)
        all *= sizes[axis];
    return all;
}

/* y = a x + b: a is a number in the context, b an optional input; the second result is the sum. */
int32_t scaled(int32_t inputs, int32_t outputs, void *const *data, const int32_t *types,
               const int32_t *ranks, const int64_t *const *sizes, const char *attributes,
               const void *context, char *error, int64_t error_bytes)
{
    const float *x = data[0], *b = data[1];
    float *y = data[inputs], *sum = outputs > 1 ? data[inputs + 1] : NULL, a, all = 0;
    if (types[0] != 1 || types[inputs] != 1) {
        snprintf(error, error_bytes, "it takes f32, not type %d", types[0]);
        return 2;
    }
    if (strstr(attributes, "\"crash\": 1") != NULL)
        *(volatile int *)8 = 1;
    if (strstr(attributes, "\"hang\": 1") != NULL)
        for (volatile int i = 0; i < 1; i = 0)
            ;
    if (strstr(attributes, "\"overrun\": 1") != NULL)
        y[count(ranks[0], sizes[0])] = 1;
    if (strstr(attributes, "\"fail\": 1") != NULL) {
        snprintf(error, error_bytes, "it was told to fail, with rank %d", ranks[0]);
        return 7;
    }
    memcpy(&a, context, sizeof a);
    for (int64_t i = 0; i < count(ranks[0], sizes[0]); i++) {
        y[i] = a * x[i] + (b != NULL ? b[0] : 0);
        all += y[i];
    }
    if (sum != NULL)
        *sum = all;
    return 0;
}
"""


def alike(
    operands: Sequence[TensorType | None], attributes: Mapping[str, Attribute]
) -> list[TensorType]:
    """The type rule: the result is like the first operand, and a second one is a number."""
    first = operands[0]
    assert first is not None
    return [first, TensorType(first.dtype, ())]


def first_alike(
    operands: Sequence[TensorType | None], attributes: Mapping[str, Attribute]
) -> list[TensorType]:
    return alike(operands, attributes)[:1]


custom = partial(node, name="the node", domain=DOMAIN)
"""A node of the domain that the tests register functions for."""


def scaled_library(folder: Path) -> Path:
    """A shared library with the function `scaled`."""
    (folder / "scaled.c").write_text(SOURCE)
    cc(folder, "-shared", "-fPIC", "-o", "libscaled.so", "scaled.c")
    return folder / "libscaled.so"
