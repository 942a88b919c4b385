"""TensorProto -> NumPy array: raw data, typed data, and external data."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, SparseTensorProto, TensorProto

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.external_data import ExternalData
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

Initializer: TypeAlias = TensorProto | SparseTensorProto

_MAX_EXTENT = 2**40  # NumPy multiplies extents and strides, also where there are no elements


def initializers(graph: GraphProto) -> dict[str, Initializer]:
    """The initializers of a graph by name, dense and sparse.

    Raises ImportModelError for one without a name, and for two of one name.
    """
    found: dict[str, Initializer] = {}
    for tensor in (*graph.initializer, *graph.sparse_initializer):
        name = tensor.values.name if isinstance(tensor, SparseTensorProto) else tensor.name
        if not name:
            raise ImportModelError("an initializer has no name")
        if name in found:
            raise ImportModelError(f"the initializer {name!r} is there twice")
        found[name] = tensor
    return found


def element_type(tensor: Initializer, name: str) -> DType:
    """The type of an initializer's elements. Raises ImportModelError."""
    values = tensor.values if isinstance(tensor, SparseTensorProto) else tensor
    return dtype_of(values.data_type, f"initializer {name!r}")


def read_initializer(
    tensor: Initializer, name: str, external: ExternalData | None, allowance: ResourceBudget
) -> Array:
    """The contents of an initializer as a read-only array. Raises ImportModelError."""
    what = f"initializer {name!r}"
    if isinstance(tensor, SparseTensorProto):
        return read_sparse(tensor, what, external, allowance)
    return read_tensor(tensor, what, external, allowance)


def read_tensor(
    tensor: TensorProto, what: str, external: ExternalData | None, allowance: ResourceBudget
) -> Array:
    """The contents of a tensor as a read-only array.

    `what` names the tensor for errors; `external` is None when the model did not come from a file
    (external data is refused then). Raises ImportModelError.
    """
    dtype = dtype_of(tensor.data_type, what)
    shape = tuple(tensor.dims)
    if any(extent < 0 for extent in shape):
        raise ImportModelError(f"{what} has a negative dimension: {list(shape)}")
    allowance.check_array(what, shape, dtype.bytes)
    count = math.prod(shape)
    if any(extent > _MAX_EXTENT for extent in shape):  # besides a 0
        raise ImportModelError(f"{what} has an impossible dimension: {list(shape)}")
    if dtype is DType.STRING:
        return _words(tensor, shape, count, what)
    if tensor.HasField("segment"):
        raise ImportModelError(f"{what} is stored in segments, which are not supported")
    if tensor.data_location == TensorProto.EXTERNAL:
        data = _external_bytes(tensor, what, external, _stored_bytes(dtype, count))
        array = _from_bytes(data, dtype, count, what)
    elif tensor.HasField("raw_data"):
        array = _from_bytes(tensor.raw_data, dtype, count, what)
    else:
        array = _from_typed_data(tensor, dtype, count, what)
    result = array.reshape(shape)
    result.flags.writeable = False
    return result


def read_sparse(
    tensor: SparseTensorProto, what: str, external: ExternalData | None, allowance: ResourceBudget
) -> Array:
    """The contents of a sparse tensor as a read-only array, with 0 ("" of strings) elsewhere.

    Its indices are places in the whole array, or one in each axis. Raises ImportModelError.
    """
    values = read_tensor(tensor.values, f"{what}: its values", external, allowance)
    indices = read_tensor(tensor.indices, f"{what}: its indices", external, allowance)
    shape = tuple(tensor.dims)
    if any(not 0 <= extent <= _MAX_EXTENT for extent in shape):
        raise ImportModelError(f"{what} has an impossible dimension: {list(shape)}")
    allowance.check_array(what, shape, values.itemsize)
    dense: Array = np.zeros(shape, values.dtype)
    if values.dtype == object:
        dense.fill("")
    by_axis = indices.ndim == 2
    limits = shape if by_axis else (dense.size,)
    fits = indices.dtype.kind in "iu" and values.ndim == 1
    fits = fits and indices.shape == (values.size, *(len(shape),) * by_axis)
    rows: npt.NDArray[np.int64] = indices.astype(np.int64) if fits else np.empty(0, np.int64)
    if not fits or ((rows < 0) | (rows >= np.array(limits, np.int64))).any():
        raise ImportModelError(f"{what} has indices outside of {list(shape)}")
    steps = [math.prod(limits[axis + 1 :]) for axis in range(len(limits))]
    places = rows.reshape(values.size, len(limits)) @ np.array(steps, np.int64)
    dense.reshape(-1)[places] = values
    dense.flags.writeable = False
    return dense


def _words(tensor: TensorProto, shape: tuple[int, ...], count: int, what: str) -> Array:
    """The strings of a tensor, as objects."""
    if len(tensor.string_data) != count:
        raise ImportModelError(f"{what} needs {count} elements and has {len(tensor.string_data)}")
    array = np.empty(count, object)
    try:
        array[:] = [item.decode() for item in tensor.string_data]
    except UnicodeDecodeError as error:
        raise ImportModelError(f"{what} has an element that is not UTF-8 text") from error
    return array.reshape(shape)


def _stored_bytes(dtype: DType, count: int) -> int:
    """Bytes of `count` elements in a file, where narrow ones share bytes."""
    return -(-count * dtype.bits // 8) if _is_packed(dtype) else count * dtype.bytes


def _is_packed(dtype: DType) -> bool:
    return dtype is not DType.BOOL and dtype.bits < 8


def _from_bytes(data: bytes | memoryview, dtype: DType, count: int, what: str) -> Array:
    size = _stored_bytes(dtype, count)
    if len(data) != size:
        raise ImportModelError(f"{what} needs {size} bytes of data and has {len(data)}")
    if _is_packed(dtype):
        return _unpacked(np.frombuffer(data, np.uint8), dtype, count)
    if dtype is DType.BOOL:
        flags: Array = np.frombuffer(data, np.uint8).astype(np.bool_)
        return flags
    unsigned = np.dtype(f"u{dtype.bytes}")
    little_endian = np.frombuffer(data, unsigned.newbyteorder("<"))
    native = np.require(little_endian, unsigned, ["C_CONTIGUOUS", "ALIGNED"])
    return native.view(dtype.numpy)


def _unpacked(data: npt.NDArray[np.uint8], dtype: DType, count: int) -> Array:
    """Elements of fewer than 8 bits, the first of each byte in its lowest bits, a byte for each."""
    places = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    elements = (data[:, None] >> places) & np.uint8((1 << dtype.bits) - 1)
    return elements.reshape(-1)[:count].copy().view(dtype.numpy)


def _from_typed_data(tensor: TensorProto, dtype: DType, count: int, what: str) -> Array:
    stored: Array
    if _is_packed(dtype) or (dtype.is_float and dtype.bits <= 16):
        return _from_typed_bits(tensor, dtype, count, what)
    if dtype is DType.F32:
        stored = np.array(tensor.float_data, np.float32)
    elif dtype is DType.F64:
        stored = np.array(tensor.double_data, np.float64)
    elif dtype is DType.I64:
        stored = np.array(tensor.int64_data, np.int64)
    elif dtype in (DType.U32, DType.U64):
        stored = np.array(tensor.uint64_data, np.uint64)
    else:
        stored = np.array(tensor.int32_data, np.int32)
    if stored.size != count:
        raise ImportModelError(f"{what} needs {count} elements and has {stored.size}")
    array = stored.astype(dtype.numpy)
    if dtype is not DType.BOOL and dtype.is_integer and not np.array_equal(array, stored):
        raise ImportModelError(f"{what} has elements outside the range of {dtype}")
    return array


def _from_typed_bits(tensor: TensorProto, dtype: DType, count: int, what: str) -> Array:
    """Elements whose bits are given as integers: of narrow floats one each, else whole bytes."""
    bits = np.array(tensor.int32_data, np.int64)
    unsigned = np.dtype(np.uint8 if _is_packed(dtype) else f"<u{dtype.bytes}")
    if bits.size and not 0 <= bits.min() <= bits.max() <= np.iinfo(unsigned).max:
        raise ImportModelError(f"{what} has elements outside the range of {dtype}")
    return _from_bytes(bits.astype(unsigned).tobytes(), dtype, count, what)


def _external_bytes(
    tensor: TensorProto, what: str, external: ExternalData | None, default_length: int
) -> bytes | memoryview:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if external is None:
        raise ImportModelError(
            f"{what} is stored outside the model, in {location!r}",
            hint="import the model from its file, so that its folder is known",
        )
    offset = _entry(entries, "offset", 0, what)
    length = _entry(entries, "length", default_length, what)
    if length != default_length:
        raise ImportModelError(
            f"{what} needs {default_length} bytes of external data and declares {length}"
        )
    return external.read(location, offset, length, what)


def _entry(entries: dict[str, str], key: str, default: int, what: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ImportModelError(f"{what} has the external data {key} {text[:40]!r}")
    return int(text)
