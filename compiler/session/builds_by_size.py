"""BuildsBySize: an ONNX file that leaves sizes open is built for those that come.

The first run builds for its own sizes, and so does each that brings others. Once a dimension has
shown its third size a build for a range begins in the background; when it is there it serves all
runs within the range. A size beyond it is built for by itself, and a wider range follows. Where a
dimension is 1 in some runs, as the tokens of a decoder's steps are, these have a program of their
own: with one row other code is fast than with many.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tunefarm.compiler.errors import (
    ImportModelError,
    InputError,
    TunefarmError,
    declarations_known,
)
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.session.options import LOG
from tunefarm.compiler.session.ports import NodeArg
from tunefarm.compiler.types.extents import Given, Shapes

VARIED = 3
"""Sizes of one dimension after which a build for a range is worth its time."""
_KEPT = 8
"""Builds for single sizes that are kept, each with its constants."""
_LEAST_PRIORITY = 19

Key = tuple[tuple[int, ...], ...]


class BuildsBySize:
    """The executables of one model, each for some sizes. Runs may come from several threads."""

    def __init__(
        self,
        path: str,
        inputs: Sequence[NodeArg],
        build: Callable[[Shapes], Executable],
        unranked: Collection[str] = (),
        defaults: Collection[str] = (),
    ) -> None:
        """`inputs` are the model's, `build` compiles it for shapes. Of `unranked` inputs the model
        does not say the rank; those with `defaults` may be given as well."""
        self._path, self._inputs, self._build = path, inputs, build
        self._unranked, self._optional = unranked, defaults
        self._exact: OrderedDict[Key, Executable] = OrderedDict()
        self._range: Executable | None = None
        self._bounds: dict[object, tuple[int, int]] = {}
        self._seen: dict[object, set[int]] = {}
        self._thread: threading.Thread | None = None
        self._failed = False
        self._is_built = False
        self._lock = threading.Lock()
        self.latest: Executable | None = None
        """What the last run was served by."""

    def executable_for(self, feed: Mapping[str, object]) -> Executable:
        """What runs inputs of these shapes; it is built if there is none yet.

        Raises `InputError` for inputs that are missing, unknown or of another shape than the model
        declares, and for shapes that it cannot be built for.
        """
        key = self._key(feed)
        sizes = self._sizes(key)
        with self._lock:
            found = self._range if self._is_within(sizes) else None
            if found is None:
                found, is_new = self._of_size(key)
                if is_new:
                    self._note(sizes)
            self.latest = found
        return found

    def is_range(self, executable: Executable) -> bool:
        """Whether an executable serves a range of sizes."""
        return executable is self._range

    def exact_for(self, feed: Mapping[str, object]) -> Executable:
        """What runs inputs of these shapes alone. Raises `InputError` as `executable_for` does."""
        with self._lock:
            self.latest = self._of_size(self._key(feed))[0]
            return self.latest

    def _of_size(self, key: Key) -> tuple[Executable, bool]:
        """The build for one size, and whether it was made now."""
        found = self._exact.get(key)
        if found is not None:
            self._exact.move_to_end(key)
            return found, False
        found = self._exact[key] = self._built(key)
        while len(self._exact) > _KEPT:
            self._exact.popitem(last=False)
        return found, True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no build goes on in the background; whether that came true."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def _key(self, feed: Mapping[str, object]) -> Key:
        if not isinstance(feed, Mapping):
            raise InputError(f"inputs are given by name, as a dict, not as {type(feed).__name__}")
        names = ", ".join(repr(port.name) for port in self._inputs)
        for name in feed:
            if name not in self._optional and all(port.name != name for port in self._inputs):
                raise InputError(f"the model has no input {name!r}; its inputs are {names}")
        shapes = []
        for port in self._inputs:
            if port.name not in feed:
                raise InputError(f"input {port.name!r} is missing; the model's inputs are {names}")
            value: Any = feed[port.name]
            shape = tuple(np.shape(value))
            pairs = zip(shape, port.shape, strict=False)
            if port.name in self._unranked:
                shapes.append(shape)
                continue
            if len(shape) != len(port.shape) or any(
                isinstance(declared, int) and given != declared for given, declared in pairs
            ):
                declared_text = ", ".join("?" if d is None else str(d) for d in port.shape)
                raise InputError(
                    f"input {port.name!r} has the shape {list(shape)}, the model declares "
                    f"[{declared_text}]"
                )
            shapes.append(shape)
        return tuple(shapes)

    def _sizes(self, key: Key) -> dict[object, int]:
        """The size of each dimension that the model leaves open: by its name, or by its place."""
        found: dict[object, int] = {}
        for port, shape in zip(self._inputs, key, strict=True):
            for axis, (declared, size) in enumerate(zip(port.shape, shape, strict=False)):
                if not isinstance(declared, int):
                    label = _label(port.name, axis, declared)
                    if found.setdefault(label, size) != size:
                        raise InputError(
                            f"input {port.name!r} has the shape {list(shape)}, and another input "
                            f"has the size {found[label]} for {declared!r}"
                        )
        return found

    def _is_within(self, sizes: Mapping[object, int]) -> bool:
        return self._range is not None and all(
            self._bounds[label][0] <= size <= self._bounds[label][1]
            for label, size in sizes.items()
        )

    def _built(self, key: Key) -> Executable:
        shapes = {port.name: shape for port, shape in zip(self._inputs, key, strict=True)}
        LOG.info("building %s for %s", self._path, shapes)
        try:
            return self._compiled(shapes)
        except ImportModelError as error:
            listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise InputError(
                f"the model cannot be built for inputs of {listed}: {error.message}",
                hint=error.hint,
            ) from error

    def _compiled(self, shapes: Shapes) -> Executable:
        """The first build alone reports what the file declares wrongly."""
        with declarations_known(self._is_built):
            found = self._build(shapes)
        self._is_built = True
        return found

    def _note(self, sizes: Mapping[object, int]) -> None:
        """Remember sizes that a build was made for; build for a range once they vary."""
        for label, size in sizes.items():
            self._seen.setdefault(label, set()).add(size)
        varied = any(len(seen) >= VARIED for seen in self._seen.values())
        if self._unranked or not varied or self._failed or not self.wait(0):
            return
        bounds = {label: _bounds_of(seen) for label, seen in self._seen.items()}
        given: dict[object, Given] = dict(bounds)
        apart = [label for label, seen in self._seen.items() if min(seen) == 1 < len(seen)]
        if apart:  # of one dimension: each doubles the time of the build
            widest = max(apart, key=lambda label: bounds[label][1])
            given[widest] = f"1|2..{bounds[widest][1]}"
        shapes = {
            port.name: tuple(
                declared if isinstance(declared, int) else given[_label(port.name, axis, declared)]
                for axis, declared in enumerate(port.shape)
            )
            for port in self._inputs
        }
        self._thread = threading.Thread(
            target=self._build_range, args=(shapes, bounds), name="build for a range", daemon=True
        )
        self._thread.start()

    def _build_range(self, shapes: Shapes, bounds: Mapping[object, tuple[int, int]]) -> None:
        LOG.info("building %s for the range %s", self._path, shapes)
        with suppress(OSError):  # runs come first; what the build starts inherits it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_PRIORITY)
        try:
            found = self._compiled(shapes)
        except TunefarmError as error:
            LOG.warning("%s is built for each size: %s", self._path, error)
            self._failed = True
            return
        with self._lock:
            self._range, self._bounds = found, dict(bounds)


def _label(name: str, axis: int, declared: str | None) -> object:
    """What tells a dimension from others: its name, or where it is; "?" is what some call any."""
    return (name, axis) if declared in (None, "?") else declared


def _bounds_of(seen: set[int]) -> tuple[int, int]:
    """Bounds for sizes like these: a single one stays as it is."""
    if len(seen) == 1:
        (size,) = seen
        return size, size
    return max(min(1, min(seen)), min(seen) // 2), 2 * max(seen)
