"""Dense copies of tensors for custom operators: these know nothing of padding inside of a tensor.

What lies at the beginning of its memory is dense already, as what is open in its outermost axis
alone is. The others have copies in the workspace of the call, as large as they are at the bounds,
one behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.runtime.spec.executable_spec import aligned
from tunefarm.compiler.types.open_axes import OpenAxes, lies_dense
from tunefarm.compiler.types.tensor_type import TensorType


def dense_places(
    types: Sequence[TensorType | None], axes: Sequence[OpenAxes | None]
) -> tuple[tuple[int | None, ...], int]:
    """Where in the workspace the copy of each tensor is, None of those without; bytes of all."""
    places: list[int | None] = []
    end = 0
    for type, own in zip(types, axes, strict=True):
        copied = type is not None and own is not None and not lies_dense(own)
        places.append(end if copied else None)
        end += aligned(type.bytes) if type is not None and copied else 0
    return tuple(places), end
