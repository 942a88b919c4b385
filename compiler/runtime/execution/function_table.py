"""FunctionTable: the functions that a loaded model calls by name, and what comes of their errors.

The signature is that of `tunefarm.compiler.foreign_functions`.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.compiler.errors import ArtefactError, FunctionError
from tunefarm.compiler.foreign_functions import (
    ELEMENT_TYPES,
    CFunction,
    RegisteredFunction,
    find_function,
    nearest_function,
)
from tunefarm.compiler.runtime.spec.executable_spec import (
    REPORT_BYTES,
    FunctionLink,
    FunctionStep,
    RunStep,
    extents_bytes,
)
from tunefarm.compiler.runtime.spec.ports import AnyArray
from tunefarm.compiler.types.tensor_type import TensorType

_Int32s, _Sizes = ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))
_Signature = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_int32,  # inputs
    ctypes.c_int32,  # outputs
    ctypes.POINTER(ctypes.c_void_p),  # data
    _Int32s,  # types
    _Int32s,  # ranks
    _Sizes,  # sizes
    ctypes.c_char_p,  # attributes
    ctypes.c_void_p,  # context
    ctypes.c_void_p,  # error
    ctypes.c_int64,  # error_bytes
)
_BY_NUMBER = {number: dtype for dtype, number in ELEMENT_TYPES.items()}


class FunctionTable:
    """The functions of one executable: `pointers` has each and its context, interleaved.

    Raises `ArtefactError` for a function that is not registered, that is of another version, or
    whose library or symbol is missing.
    """

    def __init__(
        self, model: str, functions: Sequence[FunctionLink], steps: Sequence[RunStep]
    ) -> None:
        self._model = model
        self._links, self._steps = functions, steps
        self._raised = threading.local()
        self._alive: list[object] = []
        self._callables: list[Any] = []
        self.pointers: list[int] = []
        for link in functions:
            registered = self._registered(link)
            context = registered.context
            held = ctypes.create_string_buffer(context, len(context)) if context else None
            self._alive.append(held)
            function = self._callable(registered)
            self._callables.append(function)
            self.pointers += [
                ctypes.cast(function, ctypes.c_void_p).value or 0,
                0 if held is None else ctypes.addressof(held),
            ]

    def _registered(self, link: FunctionLink) -> RegisteredFunction:
        found = find_function(link.name)
        if found is None:
            raise ArtefactError(
                f"{self._model} calls the function {link.name} (version {link.version}), which is "
                "not registered",
                hint=nearest_function(link.name) or "call tunefarm.register_function before",
            )
        if found.version != link.version:
            raise ArtefactError(
                f"{self._model} was built with version {link.version} of the function {link.name}, "
                f"and version {found.version} is registered",
                hint="build the model again, or register that version",
            )
        return found

    def _callable(self, registered: RegisteredFunction) -> Any:
        given = registered.implementation
        if not isinstance(given, CFunction):
            return _Signature(_python(registered.name, given, self._raised))
        path = Path(os.fspath(given.library))
        try:
            # What lies in no folder is looked for where the system has its libraries.
            library = ctypes.CDLL(str(path.absolute() if path.exists() else path))
            self._alive.append(library)
            address = ctypes.cast(getattr(library, given.symbol), ctypes.c_void_p).value or 0
        except OSError as error:
            raise ArtefactError(
                f"function {registered.name}: the library cannot be loaded: {error}"
            ) from error
        except AttributeError as error:
            raise ArtefactError(
                f"function {registered.name}: {path} has no symbol {given.symbol}"
            ) from error
        return _Signature(address)

    def raise_failure(self, report: int) -> None:
        """Raise `FunctionError` with function, node and reason if a report says that one failed."""
        number = ctypes.c_int32.from_address(report).value
        if not number:
            return
        step = self._steps[number - 1]
        assert isinstance(step, FunctionStep)
        text = ctypes.string_at(report + 8, REPORT_BYTES - 8).split(b"\0")[0]
        code = ctypes.c_int32.from_address(report + 4).value
        self._raise(step, code, text, self._shapes(step, report))

    def under_way(self, report: int) -> str:
        """Of a run that has crashed, which call it was in: "function f (c_symbol in C) in node
        'n'"; "" where it was in none."""
        failed, number = (ctypes.c_int32 * 2).from_address(report)
        step = self._steps[number - 1] if 0 < number <= len(self._steps) else None
        if failed or not isinstance(step, FunctionStep):
            return ""
        link = self._links[step.function]
        in_c = f" ({link.symbol} in C)" if link.symbol else ""
        return f"function {link.name}{in_c} in {self._where(step, self._shapes(step, report))}"

    def _shapes(self, step: FunctionStep, report: int) -> Sequence[tuple[int, ...]]:
        """What a step of a run was called with; nothing where sizes are fixed."""
        return _extents_at(step, report - extents_bytes(self._steps)) if step.axes else ()

    def _where(self, step: FunctionStep, shapes: Sequence[tuple[int, ...]]) -> str:
        called = f", called with {_operands_text(step, shapes)}" if shapes else ""
        return f"node {step.node!r}{called}"

    def _raise(
        self, step: FunctionStep, code: int, text: bytes, shapes: Sequence[tuple[int, ...]] = ()
    ) -> None:
        """`shapes` are those of the tensors that it was called with, where sizes are open."""
        raised: BaseException | None = getattr(self._raised, "error", None)
        self._raised.error = None
        if raised is not None and not isinstance(raised, Exception):
            raise raised  # KeyboardInterrupt and its like are no failure of the function
        reason = " ".join(text.decode("utf-8", "replace").split()) or f"it returned {code}"
        if isinstance(raised, FunctionError):
            reason = raised.message
        elif raised is not None:
            reason = f"{type(raised).__name__}: {raised}"
        name = self._links[step.function].name
        node = self._where(step, shapes)
        raise FunctionError(f"function {name} failed in {node}: {reason}") from raised

    def call(self, step: FunctionStep, addresses: Sequence[int]) -> Callable[[], None]:
        """A step of fixed sizes by itself, on buffers at these addresses (0 where absent)."""
        shapes = [() if type is None else type.shape for type in step.types]
        inputs = len(step.buffers) - step.outputs
        numbers = [0 if type is None else ELEMENT_TYPES[type.dtype] for type in step.types]
        count, text = len(shapes), ctypes.create_string_buffer(REPORT_BYTES)
        extents = [(ctypes.c_int64 * max(1, len(shape)))(*shape) for shape in shapes]
        pointers = (ctypes.POINTER(ctypes.c_int64) * count)(
            *(ctypes.cast(item, ctypes.POINTER(ctypes.c_int64)) for item in extents)
        )
        arguments = (
            inputs,
            step.outputs,
            (ctypes.c_void_p * count)(*addresses),
            (ctypes.c_int32 * count)(*numbers),
            (ctypes.c_int32 * count)(*map(len, shapes)),
            pointers,
            step.arguments.encode(),
            self.pointers[2 * step.function + 1],
            ctypes.addressof(text),
            REPORT_BYTES,
        )
        function = self._callables[step.function]

        def call() -> None:
            text.value = b""
            code = function(*arguments)
            if code:
                self._raise(step, code, text.value)

        return call


def _python(name: str, function: Callable[..., Any], raised: threading.local) -> Callable[..., int]:
    """A Python function in the signature; what it raises is kept in `raised`, by thread."""

    def call(
        inputs: int,
        outputs: int,
        data: Any,
        types: Any,
        ranks: Any,
        sizes: Any,
        attributes: bytes,
        context: int | None,
        error: int | None,
        error_bytes: int,
    ) -> int:
        try:
            arrays = [
                _array(data[i], types[i], tuple(sizes[i][: ranks[i]]), writeable=i >= inputs)
                for i in range(inputs + outputs)
            ]
            given = function(*arrays[:inputs], **_arguments(attributes))
            _store(given, [array for array in arrays[inputs:] if array is not None])
        except BaseException as failure:  # noqa: BLE001  # raised again when the run has ended
            raised.error = failure
            return 1
        return 0

    return call


def _arguments(attributes: bytes) -> dict[str, Any]:
    """A node's attributes as keyword arguments; lists are tuples."""
    given: dict[str, Any] = json.loads(attributes)
    return {n: tuple(value) if isinstance(value, list) else value for n, value in given.items()}


def _array(
    address: int | None, number: int, shape: tuple[int, ...], writeable: bool
) -> AnyArray | None:
    """The tensor at an address."""
    if not number:
        return None
    dtype = _BY_NUMBER[number].numpy
    size = TensorType(_BY_NUMBER[number], shape).bytes
    if not size or address is None:
        return np.empty(shape, dtype)
    content = memoryview((ctypes.c_uint8 * size).from_address(address))
    array: AnyArray = np.frombuffer(content, np.uint8).view(dtype).reshape(shape)
    array.flags.writeable = writeable
    return array


def _store(given: object, outputs: Sequence[AnyArray]) -> None:
    """Copy what a Python function returned to where it belongs; `FunctionError` if it is not that.

    Element types must agree: what would be rounded silently is more often a mistake.
    """
    results = given if isinstance(given, tuple | list) else (given,)
    if len(results) != len(outputs):
        raise FunctionError(f"it returned {len(results)} results instead of {len(outputs)}")
    for position, (result, output) in enumerate(zip(results, outputs, strict=True)):
        array = np.asarray(result)
        if array.shape != output.shape or array.dtype != output.dtype:
            raise FunctionError(
                f"its result {position} is {array.dtype}{list(array.shape)}, where its type rule "
                f"gives {output.dtype}{list(output.shape)}"
            )
        output[...] = array


def _extents_at(step: FunctionStep, address: int) -> list[tuple[int, ...]]:
    """The shapes that the entry function has stored before a call."""
    shapes = []
    for type in step.types:
        rank = 0 if type is None else len(type.shape)
        shapes.append(tuple((ctypes.c_int64 * rank).from_address(address)))
        address += 8 * rank
    return shapes


def _operands_text(step: FunctionStep, shapes: Sequence[tuple[int, ...]]) -> str:
    """The operands of a call for errors: f32[2, 3], i64[7]."""
    operands = list(zip(step.types, shapes, strict=True))[: len(step.types) - step.outputs]
    texts = ("absent" if t is None else str(TensorType(t.dtype, shape)) for t, shape in operands)
    return ", ".join(texts)
