"""Arrays in files: inputs of a run as .npy, its outputs as .npz."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping

import numpy as np

from tunefarm.compiler.errors import InputError, system_errors_as
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.configs.files import open_regular, replacing


def read_array(path: str) -> Array:
    """A .npy file's array; InputError if it is none."""
    try:
        with system_errors_as(InputError, f"read {path}"), open_regular(path) as file:
            loaded = np.load(file, allow_pickle=False)
    except (EOFError, ValueError) as error:
        reason = "numpy.save of an array writes one" if "pickle" in str(error) else str(error)
        raise InputError(f"{path} is not a .npy file: {reason}") from error
    if not isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds several arrays, give a .npy file")
    return loaded


def json_array(text: str) -> Array | None:
    """Numbers or strings as JSON has them; None for anything else, such as the name of a file."""
    try:
        return np.asarray(json.loads(text))
    except ValueError:
        return None


def read_input(text: str, type: TensorType | None) -> Array:
    """What `NAME=TEXT` gives an input of that type: `json_array`, or the array of a .npy file.

    Raises InputError for a file that is none, and for numbers that are none of that type.
    """
    array = json_array(text)
    if array is None or type is None:
        return as_stored(type, read_array(text) if array is None else array)
    with np.errstate(all="ignore"):
        found = array.astype(type.dtype.numpy) if array.dtype.kind in "biuf" else None
    if found is None or (type.dtype.is_integer and not np.array_equal(found, array)):
        raise InputError(f"{text} is no value of {type.dtype}")
    return found.reshape((1,) * len(type.shape)) if found.size == 1 else found


def as_stored(type: TensorType | None, array: Array) -> Array:
    """A file's array in an input's type where files have no name for that: only its bytes."""
    if type is None or array.dtype.kind != "V" or array.dtype.itemsize != type.dtype.bytes:
        return array
    return array.view(type.dtype.numpy)


def write_outputs(outputs: Mapping[str, Array], path: str) -> None:
    """Write arrays to an .npz file, replacing an old one only when the new one is complete.

    Elements of types that NumPy has not are written as their bytes, as NumPy's own functions do.
    """
    with (
        system_errors_as(InputError, f"write {path}"),
        replacing(path) as unfinished,
        zipfile.ZipFile(unfinished, "w") as archive,
    ):
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                stored = array.astype(str) if array.dtype.kind == "O" else np.asanyarray(array)
                np.lib.format.write_array(file, stored, allow_pickle=False)
