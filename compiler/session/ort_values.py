"""OrtValue and IOBinding: thin forms over NumPy arrays, for programs that use onnxruntime's.

Everything is in the memory of the CPU, whichever device a program names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tunefarm.compiler.errors import ComputedOutputError, InputError
from tunefarm.compiler.runtime.spec.ports import refuse_unknown
from tunefarm.compiler.session.ports import type_text
from tunefarm.compiler.types.dtypes import DType

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.spec.ports import AnyArray
    from tunefarm.compiler.session.inference_session import InferenceSession

_ONNX_TYPES: Final = {dtype.onnx_number: dtype for dtype in DType if dtype != DType.STRING}
"""Element types by their numbers in ONNX."""


def _dtype_of(type: object) -> np.dtype[Any]:
    if isinstance(type, int):
        if type not in _ONNX_TYPES:
            raise InputError(f"there are no arrays of ONNX's element type {type}")
        return _ONNX_TYPES[type].numpy
    return np.dtype(type)  # type: ignore[call-overload, no-any-return]


class OrtValue:
    """An array, or a list of arrays, as onnxruntime wraps it; `numpy` is the array itself."""

    def __init__(self, value: Any) -> None:
        """`value` may be what onnxruntime's own functions wrap, such as weights of an adapter."""
        self._given = value  # the memory of the array may be its
        is_wrapped = not isinstance(value, np.ndarray) and hasattr(value, "numpy")
        self._value = value.numpy() if is_wrapped else value

    @classmethod
    def ortvalue_from_numpy(
        cls, array: AnyArray, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """The value of an array, which it shares."""
        if not isinstance(array, np.ndarray):
            raise InputError(
                f"a value is made of an array, not of a {type(array).__name__}",
                hint="numpy.asarray makes an array of it",
            )
        return cls(array)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, array: AnyArray, onnx_type: int) -> OrtValue:
        """The value of an array, whose bits are elements of an ONNX type."""
        return cls(array.view(_dtype_of(onnx_type)))

    @classmethod
    def from_dlpack(cls, value: Any) -> OrtValue:
        """The value of an array of another library, which it shares."""
        return cls(np.from_dlpack(value))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: object = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
    ) -> OrtValue:
        """A new array of any content."""
        return cls(np.empty(tuple(shape), _dtype_of(element_type)))

    def numpy(self) -> Any:
        """The array."""
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        """The array, as NumPy asks for it."""
        return np.array(self._value, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> object:
        """The array, as DLPack has it."""
        return self._value.__dlpack__(**options)

    def __dlpack_device__(self) -> object:
        """The CPU, as DLPack has it."""
        return self._value.__dlpack_device__()

    def update_inplace(self, array: AnyArray) -> None:
        """Copy an array of the same type and shape into this one."""
        given = np.asarray(array)
        if (given.shape, given.dtype) != (self._value.shape, self._value.dtype):
            raise InputError(
                f"the value is {self._value.dtype}{list(self._value.shape)}, and cannot become "
                f"{given.dtype}{list(given.shape)}",
                hint="make a new value with ortvalue_from_numpy",
            )
        np.copyto(self._value, given)

    def shape(self) -> list[int]:
        """The array's shape."""
        return list(self._value.shape)

    def data_type(self) -> str:
        """The type in onnxruntime's spelling: tensor(float)."""

        return type_text(DType.from_numpy(self._value.dtype))

    def element_type(self) -> int:
        """The number that ONNX has for the element type."""
        return DType.from_numpy(self._value.dtype).onnx_number

    def tensor_size_in_bytes(self) -> int:
        """The array's size."""
        return int(self._value.nbytes)

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self._value.ctypes.data)

    def device_name(self) -> str:
        """The CPU's."""
        return "cpu"

    def has_value(self) -> bool:
        """Whether there is an array."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Whether it is one array."""
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """Whether it is a list of arrays."""
        return isinstance(self._value, list)

    def is_sparse_tensor(self) -> bool:
        """No: all arrays are dense."""
        return False


class IOBinding:
    """Inputs and outputs of a session's next runs, by name."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, object] = {}
        self._outputs: dict[str, AnyArray | None] = {}
        self._results: dict[str, Any] = {}

    @property
    def _iobinding(self) -> IOBinding:
        """What onnxruntime's bindings wrap, which programs ask for results."""
        return self

    def bind_cpu_input(self, name: str, array: AnyArray) -> None:
        """Read an input from an array, as it is at each run. Raises `InputError` as all that binds
        does, for a name that the model does not have."""
        self._bind_input(name, array)

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """Read an input from the array of an OrtValue."""
        self._bind_input(name, value.numpy())

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: object,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Read an input from memory of the CPU at an address."""
        self._bind_input(name, _array_at(buffer_ptr, element_type, shape))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: object = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output: a new array, or one at an address."""
        array = None
        if buffer_ptr is not None and shape is not None:
            array = _array_at(buffer_ptr, element_type, shape)
        self._bind_output(name, array)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        """Write an output into the array of an OrtValue."""
        self._bind_output(name, value.numpy())

    def _bind_input(self, name: str, array: object) -> None:
        refuse_unknown("input", self._session.input_names, (name,))
        self._inputs[name] = array

    def _bind_output(self, name: str, array: AnyArray | None) -> None:
        refuse_unknown("output", self._session.output_names, (name,))
        self._outputs[name] = array

    def run(self) -> None:
        """Run the session with what is bound."""
        out = {name: array for name, array in self._outputs.items() if array is not None}
        try:
            results = self._session.run_arrays(self._inputs, out or None)
        except ComputedOutputError:  # its shape comes with the run, so it is copied
            results = self._session.run_arrays(self._inputs)
            for name, array in out.items():
                results[name] = _copied(name, results[name], array)
        self._results = {name: results[name] for name in self._outputs or results}

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return [OrtValue(value) for value in self._results.values()]

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        """The same, by onnxruntime's name for such a list."""
        return self.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as arrays."""
        return list(self._results.values())

    def clear_binding_inputs(self) -> None:
        """Forget all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget all outputs."""
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing: there is one device."""

    def synchronize_outputs(self) -> None:
        """Do nothing: there is one device."""


def _copied(name: str, result: AnyArray, array: AnyArray) -> AnyArray:
    """The array that was bound to an output, with the result in it."""
    if (result.shape, result.dtype) != (array.shape, array.dtype):
        raise InputError(
            f"output {name!r} is {result.dtype}{list(result.shape)}, and is bound to an array of "
            f"{array.dtype}{list(array.shape)}",
            hint="bind the output without an array, or one of this shape",
        )
    np.copyto(array, result)
    return array


def _array_at(address: int, element_type: object, shape: Sequence[int]) -> AnyArray:
    dtype = _dtype_of(element_type or np.float32)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = memoryview((ctypes.c_byte * count).from_address(address)).cast("B")
    return np.frombuffer(memory, dtype).reshape(tuple(shape))
