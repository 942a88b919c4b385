"""Custom operators: operators that a program brings itself, as Python or as a symbol of a library.

A model with the operator `Cube` of the domain `my.domain`, from its C function to its outputs:

    # cube.c:  cc -shared -fPIC -o libcube.so cube.c
    #   #include <stdint.h>
    #   int32_t cube(int32_t inputs, int32_t outputs, void *const *data, const int32_t *types,
    #                const int32_t *ranks, const int64_t *const *sizes, const char *attributes,
    #                const void *context, char *error, int64_t error_bytes) {
    #       int64_t count = 1;
    #       for (int32_t axis = 0; axis < ranks[0]; axis++) count *= sizes[0][axis];
    #       const float *x = data[0]; float *y = data[1];
    #       for (int64_t i = 0; i < count; i++) y[i] = x[i] * x[i] * x[i];
    #       return 0; }
    import tunefarm
    tunefarm.register_function(
        "my.domain::Cube", tunefarm.CFunction("libcube.so", "cube"), same_as_first, version="1")
    tunefarm.compiler.build("model.onnx").save("model.tuned")
    tunefarm.load("model.tuned").run({"x": x})   # wherever the function is registered

with `def same_as_first(operands, attributes): return [operands[0]]`. In Python instead of C:
`tunefarm.register_function("my.domain::Cube", lambda x: x**3, same_as_first, version="1")`.

The signature (ABI 1). Tensors are numbered: inputs first, then outputs; all are dense and in
row-major order, of their true sizes where these are dynamic. `data` points to each (null for an
optional input that is absent), `types` has ONNX's numbers of their element types (0 where absent),
`ranks` the numbers of their axes, `sizes` their extents. Elements of fewer than 8 bits have a byte
each. `attributes` are the node's, as a JSON object. `context` is what the function was registered
with. It returns 0, or another number and, if it likes, a text with a final zero in the
`error_bytes` bytes at `error`. It may be called by several threads at once. A Python function is
called with an array per input (read-only, valid during the call, None where absent) and the
attributes by name; it returns an array, or one per output.

Nothing calls a function while a model is built: its type rule alone says what it gives. One that
crashes ends the process that runs it: `tune run` runs such a model in another process first.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

TypeRule: TypeAlias = Callable[
    [Sequence[TensorType | None], Mapping[str, Attribute]], Sequence[TensorType]
]

ELEMENT_TYPES: Mapping[DType, int] = {
    dtype: dtype.onnx_number for dtype in DType if dtype is not DType.STRING
}
"""ONNX's numbers of element types, by which functions know them."""


@frozen
class CFunction:
    """The symbol of a shared library, of the signature above; `context` is handed to it.

    The library is loaded when a model that calls the function is.
    """

    library: str | os.PathLike[str]
    symbol: str
    context: bytes = b""


@frozen
class RegisteredFunction:
    """A function by the name of its operator; `types` gives results' types from operands'."""

    name: str
    implementation: Callable[..., Any] | CFunction
    types: TypeRule
    version: str

    @property
    def symbol(self) -> str:
        """The C symbol; "" of a Python function."""
        return self.implementation.symbol if isinstance(self.implementation, CFunction) else ""

    @property
    def context(self) -> bytes:
        """What a C function is handed."""
        given = self.implementation
        return given.context if isinstance(given, CFunction) else b""


_FUNCTIONS: dict[str, RegisteredFunction] = {}


def register_function(
    name: str,
    implementation: Callable[..., Any] | CFunction,
    types: TypeRule,
    *,
    version: str,
    replace: bool = False,
) -> None:
    """Bind the operator `name`, "domain::Operator", to a function of this process.

    `types` is called with the operands' types (None for one that is absent) and the node's
    attributes, when a model is imported, and returns the types of the results. Dynamic sizes
    add, multiply and divide (`//`, `%`) in it as numbers do; where it needs the number of one, the
    model is refused. `version` is compared where a built model is loaded: change it with what the
    function means. `replace` allows a name that is taken. Raises `SettingsError` for a name that is
    not of that form or is taken.
    """
    domain, separator, operator = name.partition("::")
    if not (separator and domain and operator) or "::" in operator:
        raise SettingsError(
            f"{name!r} does not name an operator", hint='names are like "my.domain::Operator"'
        )
    if not callable(types) or not (callable(implementation) or _is_c_function(implementation)):
        raise SettingsError(
            f"function {name}: the implementation and the type rule must be callable",
            hint="a C function is registered as CFunction(library, symbol)",
        )
    if not isinstance(version, str) or not version:
        raise SettingsError(f"function {name} needs a version, a text such as '1'")
    if name in _FUNCTIONS and not replace:
        raise SettingsError(f"function {name} is registered already", hint="pass replace=True")
    _FUNCTIONS[name] = RegisteredFunction(name, implementation, types, version)


def _is_c_function(implementation: object) -> bool:
    """Raises `SettingsError` for a symbol that no C compiler could have made."""
    if not isinstance(implementation, CFunction):
        return False
    if not (implementation.symbol.isascii() and implementation.symbol.isidentifier()):
        raise SettingsError(f"{implementation.symbol!r} is not the name of a C function")
    return True


def unregister_function(name: str) -> None:
    """Forget a function; models that are loaded keep it."""
    _FUNCTIONS.pop(name, None)


def find_function(name: str) -> RegisteredFunction | None:
    """The function registered for an operator, "domain::Operator"."""
    return _FUNCTIONS.get(name)


def registered_functions() -> dict[str, RegisteredFunction]:
    """All custom operators, as they are now."""
    return dict(_FUNCTIONS)


def nearest_function(name: str) -> str:
    """A hint with the registered name that is most alike; "" where none is."""
    near = difflib.get_close_matches(name, _FUNCTIONS, n=1)
    return f"did you mean {near[0]}?" if near else ""
