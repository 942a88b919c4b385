"""Ports: a model's inputs and outputs, and the arrays that callers give for them.

An array may be NumPy's, or anything that has `__dlpack__` and lies in memory that the CPU can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import InputError, SettingsError
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import TensorType

try:
    from numpy.lib.array_utils import byte_bounds
except ModuleNotFoundError as error:  # of NumPy 1; all that runs models comes here first
    raise SettingsError(
        f"tunefarm needs NumPy 2.4 or later, and {np.__version__} is installed",
        hint="pip install --upgrade numpy",
    ) from error

AnyArray: TypeAlias = npt.NDArray[Any]

# Device types of the DLPack standard: memory of the CPU, and of others that it reads as its own.
_READABLE_DEVICES = {1: "cpu", 3: "cuda_host", 11: "rocm_host", 13: "cuda_managed"}
_OTHER_DEVICES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 14: "oneapi"}


@frozen
class Port:
    """One input or output; `kind` is "input" or "output", `position` counts those of its kind.

    `unaligned` masks the bits of an address that are not zero for elements that are not aligned.
    """

    kind: str
    position: int
    name: str
    type: TensorType
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    bytes: int
    unaligned: int


def as_elements(port: Port, given: object) -> AnyArray:
    """What was given as an array of the port's type, over the same memory where there is one.

    Raises `InputError` for what is no array, on another device, or of another type.
    """
    if type(given) is np.ndarray and given.dtype == port.dtype:
        return given
    array = _as_array(f"{port.kind} {port.name!r}", given)
    if array.dtype != port.dtype:
        is_input = port.kind == "input"
        raise InputError(
            f"{port.kind} {port.name!r} has elements of type {_dtype_name(array.dtype)}, "
            f"the model {'takes' if is_input else 'gives'} {port.type.dtype}",
            hint=f"convert it with .astype({_numpy_name(port.dtype)})" if is_input else "",
        )
    return array


def check_writable(port: Port, array: AnyArray, given: object) -> None:
    """Raise `InputError` unless kernels can write to the array that was given for an output."""
    flags = array.flags
    if not isinstance(given, np.ndarray) and not hasattr(given, "__dlpack__"):
        problem = "is no array"  # it was copied into one, which nobody would see
    elif not flags.writeable:
        problem = "is read-only"
    elif not flags.c_contiguous:
        problem = "is not C-contiguous"
    elif not flags.aligned:
        problem = "does not start at a multiple of its elements' size"
    else:
        return
    raise InputError(f"output {port.name!r} {problem}, the model cannot be run into it")


def span_of(array: AnyArray, address: int) -> tuple[int, int]:
    """The addresses of an array's first byte and of the one behind its last."""
    if array.flags.c_contiguous:
        return address, address + array.nbytes
    return byte_bounds(array)


def refuse_shared(port: Port, span: tuple[int, int], others: Iterable[tuple[int, int]]) -> None:
    """Raise `InputError` if an output's bytes overlap with those of another array."""
    first, end = span
    for start, stop in others:
        if start < end and first < stop:
            raise InputError(
                f"output {port.name!r} shares memory with an input or another output",
                hint="give it memory of its own",
            )


def check_in_place(name: str, array: AnyArray, is_read: bool) -> None:
    """Raise `InputError` for an input that a run cannot write over: the code does not read its
    memory itself (`is_read`), or that is read-only."""
    if not array.flags.writeable:
        raise InputError(f"input {name!r} is read-only, the model cannot be run over it")
    if not is_read:
        raise InputError(
            f"input {name!r} does not lie as the model writes it, and cannot be written over",
            hint="give the array that the last run returned; begin with those of empty_caches()",
        )


def check_apart(
    pairs: Mapping[str, str], written: Sequence[int | None], read: Sequence[int | None]
) -> None:
    """Raise `InputError` where what is written over, at these addresses, is another input too.

    `read` are the addresses of all inputs, and `pairs` say which ones are written over.
    """
    places = {*written}
    if len(places) < len(written) or sum(address in places for address in read) > len(written):
        names = ", ".join(sorted(pairs.values()))
        raise InputError(
            f"an input that the model writes over shares memory with another one ({names})",
            hint="give each memory of its own",
        )


def check_mapping(what: str, given: object) -> None:
    """Raise `InputError` unless arrays were given by name."""
    if not isinstance(given, Mapping):
        raise InputError(
            f"{what} are given by name, as a dict, not as {type(given).__name__}",
            hint="Executable.inputs and .outputs list the names",
        )


def refuse_names(ports: Sequence[Port], given: Iterable[str]) -> NoReturn:
    """Raise the `InputError` that says which names are unknown, or else missing."""
    kind = ports[0].kind if ports else "input"
    expected = [port.name for port in ports]
    given = list(given)
    refuse_unknown(kind, expected, given)
    missing = [name for name in expected if name not in given]
    raise InputError(
        f"{kind} {_listed(missing)} is missing; the model's {kind}s are {_listed(expected)}"
    )


def refuse_unknown(kind: str, expected: Sequence[str], given: Iterable[str]) -> None:
    """Raise `InputError` for the first name that the model does not have, if there is one."""
    for name in given:
        if name in expected:
            continue
        import difflib  # only here: loading and running a model need it not

        near = difflib.get_close_matches(str(name), expected, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"the model has no {kind} {name!r}; its {kind}s are {_listed(expected)}", hint=hint
        )


def _as_array(label: str, given: object) -> AnyArray:
    if not isinstance(given, np.ndarray) and hasattr(given, "__dlpack__"):
        return _from_dlpack(label, given)
    try:
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{label} is no array: {error}") from error


def _from_dlpack(label: str, given: Any) -> AnyArray:
    """An array over a tensor's memory, which it keeps alive."""
    try:
        device, number = map(int, given.__dlpack_device__())
        if device in _READABLE_DEVICES:
            return np.from_dlpack(given)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{label} cannot be read through DLPack: {error}") from error
    name = _OTHER_DEVICES.get(device, f"type {device}")
    raise InputError(
        f"{label} is on the device {name}:{number}, the model runs on the CPU",
        hint="copy it to the CPU first",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _numpy_name(dtype: np.dtype[Any]) -> str:
    """What a program calls a type: `numpy.float32`, or `ml_dtypes.bfloat16`."""
    return f"{dtype.type.__module__}.{dtype}"


def _dtype_name(dtype: np.dtype[np.generic]) -> str:
    try:
        # Objects may be anything, not only the strings that models have as such.
        return str(dtype) if dtype.hasobject else str(DType.from_numpy(dtype))
    except ValueError:
        return str(dtype)
