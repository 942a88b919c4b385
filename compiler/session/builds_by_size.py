"""BuildsBySize: an ONNX file that leaves sizes open is built for those that come.

The first run builds for its own sizes, and so does each that brings others. Once a dimension has
shown its third size a build for a range begins in the background; when it is there it serves all
runs within the range. A wider range follows before sizes come to its end, and one beyond it is
built for by itself. Where a dimension is 1 in some runs, as the tokens of a decoder's steps are,
these have a program of their own: with one row other code is fast than with many. A dimension
whose sizes count up, as a decoder's past does, gets a wide range at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from tunefarm.compiler.errors import (
    ComputedShapeError,
    ImportModelError,
    InputError,
    TunefarmError,
    declarations_known,
)
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.session.options import LOG
from tunefarm.compiler.session.ports import NodeArg
from tunefarm.compiler.types.extents import Bounds, Label, Shapes, label_of

VARIED = 3
"""Sizes of one dimension after which a build for a range is worth its time."""
_PATIENCE = 3.0
"""How long a second size waits for the build for a range, in times of a build for one size."""
_COMPUTED = ("1..512",)
"""The bounds of a size that a run computes."""
_KEPT = 8
"""Builds for single sizes that are kept, each with its constants."""
_NICER = 5
"""By how much a build for a range comes behind runs: they get three times its time of a CPU. With
less it would hold Python's lock for long, and with it runs, while other programs have the CPUs."""

T = TypeVar("T")
Key = tuple[tuple[int, ...], ...]
Given = list[tuple[str, tuple[int, ...]]]
RangeOf = Callable[[Sequence[Mapping[Label, int]], bool, Collection[str]], tuple[Shapes, Bounds]]


def with_computed_bounds(build: Callable[[Shapes], T], shapes: Shapes) -> T:
    """A build in which sizes that a run computes have bounds, where the file has names for them.

    A run beyond these is an error that has the name.
    """
    try:
        return build(shapes)
    except ComputedShapeError as error:
        if not error.names:
            raise
        return build({**shapes, **dict.fromkeys(error.names, _COMPUTED)})


class BuildsBySize:
    """The executables of one model, each for some sizes. Runs may come from several threads."""

    def __init__(
        self,
        path: str,
        inputs: Sequence[NodeArg],
        build: Callable[[Shapes], Executable],
        range_of: RangeOf,
        unranked: Collection[str] = (),
        defaults: Collection[str] = (),
    ) -> None:
        """`inputs` are the model's, `build` compiles it for shapes, `range_of` finds those of a
        range, and its bounds, for the sizes of some runs, which it may go below, and for names that
        stand for several sizes. Of `unranked` inputs the model does not say the rank; those with
        `defaults` may be given as well."""
        self._path, self._inputs, self._build, self._range_of = path, inputs, build, range_of
        self._unranked, self._optional = unranked, defaults
        self._names = {port.name for port in inputs}
        self._exact: OrderedDict[Key, Executable] = OrderedDict()
        self._range: Executable | None = None
        self._bounds: Bounds = {}
        self._apart = set[str]()  # names of inputs that stand for several sizes
        self._runs: list[dict[Label, int]] = []  # the sizes of those that were built for
        self._thread: threading.Thread | None = None
        self._range_shapes: Shapes = {}  # of the last build for a range that was begun
        self._coming: Bounds = {}  # the bounds of the build that goes on
        self._is_behind = False  # a size was built for while the range was
        self._build_seconds = 0.0  # of the last build for one size
        self._goes_below = True  # ranges go below the sizes of runs
        self._failed = False
        self._is_built = False
        self._served: tuple[Given, Executable] | None = None
        """What the last run gave and was served by: the next one most often gives the same."""
        self._lock = threading.RLock()
        self.latest: Executable | None = None
        """What the last run was served by."""

    def executable_for(self, feed: Mapping[str, object]) -> Executable:
        """What runs inputs of these shapes; it is built if there is none yet.

        Raises `InputError` for inputs that are missing, unknown or of another shape than the model
        declares, and for shapes that it cannot be built for.
        """
        given, served = _given(feed), self._served
        if served is not None and given == served[0]:
            self.latest = served[1]
            return served[1]
        key = self._key(feed)
        if self._is_behind and self._is_coming(self._sizes(key)):
            self.wait(_PATIENCE * self._build_seconds)
        with self._lock:
            sizes = self._sizes(key)
            found = self._range if _are_within(sizes, self._bounds) else None
            if found is None:
                found, is_new = self._of_size(key)
                if is_new:
                    self._is_behind = not self.wait(0)
                    self._note(sizes)
            elif self.wait(0) and self._are_near_the_end(sizes):
                self._note(sizes)
            self.latest = found
            self._served = None if given is None else (given, found)
        return found

    def is_range(self, executable: Executable) -> bool:
        """Whether an executable serves a range of sizes."""
        return executable is self._range

    def exact_for(self, feed: Mapping[str, object]) -> Executable:
        """What runs inputs of these shapes alone. Raises `InputError` as `executable_for` does."""
        key = self._key(feed)
        with self._lock:
            self.latest, is_new = self._of_size(key)
            if is_new:
                self._note(self._sizes(key))
            return self.latest

    def _of_size(self, key: Key) -> tuple[Executable, bool]:
        """The build for one size, and whether it was made now."""
        found = self._exact.get(key)
        if found is not None:
            self._exact.move_to_end(key)
            return found, False
        begin = time.monotonic()
        found = self._exact[key] = self._built(key)
        self._build_seconds = time.monotonic() - begin
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
        for name in feed:
            if name not in self._names and name not in self._optional:
                raise InputError(
                    f"the model has no input {name!r}; its inputs are {self._listed()}"
                )
        shapes = []
        for port in self._inputs:
            if port.name not in feed:
                raise InputError(
                    f"input {port.name!r} is missing; the model's inputs are {self._listed()}"
                )
            value: Any = feed[port.name]
            shape = _shape_of(port.name, value)
            if port.name not in self._unranked and not _is_declared(port, shape):
                declared_text = ", ".join("?" if d is None else str(d) for d in port.shape)
                raise InputError(
                    f"input {port.name!r} has the shape {list(shape)}, the model declares "
                    f"[{declared_text}]"
                )
            shapes.append(shape)
        return tuple(shapes)

    def _listed(self) -> str:
        return ", ".join(repr(port.name) for port in self._inputs)

    def _sizes(self, key: Key) -> dict[Label, int]:
        """The size of each dimension that the model leaves open: by its name, or by its place."""
        found: dict[Label, int] = {}
        for port, shape in zip(self._inputs, key, strict=True):
            for axis, (declared, size) in enumerate(zip(port.shape, shape, strict=False)):
                if not isinstance(declared, int):
                    name = None if declared in self._apart else declared
                    label = label_of(port.name, axis, name)
                    if found.setdefault(label, size) != size:
                        self._take_apart(str(declared))
                        return self._sizes(key)
        return found

    def _take_apart(self, name: str) -> None:
        """A name of the file is not one size; what was built for it as one serves no more runs."""
        with self._lock:
            self._apart.add(name)
            self._range, self._bounds, self._runs = None, {}, []

    def _is_coming(self, sizes: Mapping[Label, int]) -> bool:
        """Whether the build that goes on serves sizes that the range does not."""
        return _are_within(sizes, self._coming) and not _are_within(sizes, self._bounds)

    def _are_near_the_end(self, sizes: Mapping[Label, int]) -> bool:
        """Whether a size is in the last quarter of the range."""
        return any(
            low < high and 4 * sizes[label] > 3 * high
            for label, (low, high) in self._bounds.items()
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
        """A build; the first alone reports what the file declares wrongly."""
        with declarations_known(self._is_built):
            found = with_computed_bounds(self._build, shapes)
        self._is_built = True
        return found

    def _note(self, sizes: dict[Label, int]) -> None:
        """Remember sizes of a run; build for a wider range once they vary."""
        if self._unranked or self._failed:
            return
        if sizes not in self._runs:
            self._runs.append(sizes)
        varied = any(len({run[label] for run in self._runs}) >= VARIED for label in sizes)
        if not varied or not self.wait(0):
            return
        shapes, bounds = self._range_of(self._runs, self._goes_below, self._apart)
        if shapes == self._range_shapes:
            return
        self._range_shapes, self._coming = shapes, bounds
        self._is_behind = False
        self._thread = threading.Thread(
            target=self._build_range,
            args=(shapes, self._coming),
            name="build for a range",
            daemon=True,
        )
        self._thread.start()

    def _build_range(self, shapes: Shapes, bounds: Bounds) -> None:
        LOG.info("building %s for the range %s", self._path, shapes)
        with suppress(OSError):  # runs come first; what the build starts inherits it
            thread = threading.get_native_id()
            usual = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, usual + _NICER)
        try:
            found = self._compiled(shapes)
        except TunefarmError as error:
            with self._lock:
                nearer, self._coming = self._range_of(self._runs, False, self._apart)
            if self._goes_below and nearer != shapes:
                self._goes_below = False
                self._build_range(nearer, self._coming)
                return
            LOG.warning("%s is built for each size: %s", self._path, error)
            self._failed = True
            return
        except RuntimeError as error:
            if "interpreter shutdown" in str(error):  # threads are started no more
                return
            raise
        with self._lock:
            if self._apart.isdisjoint(bounds):
                self._range, self._bounds, self._served = found, bounds, None


def _is_declared(port: NodeArg, shape: tuple[int, ...]) -> bool:
    """Whether an input's shape is one that the model declares."""
    if len(shape) != len(port.shape):
        return False
    for given, declared in zip(shape, port.shape, strict=True):
        if given != declared and isinstance(declared, int):
            return False
    return True


def _shape_of(name: str, value: Any) -> tuple[int, ...]:
    try:
        return tuple(np.shape(value))
    except ValueError as error:  # lists of different lengths
        raise InputError(f"input {name!r} is no array: {error}") from error


def _given(feed: Mapping[str, Any]) -> Given | None:
    """Names and shapes of arrays; None of anything else, as of lists of numbers."""
    try:
        return [(name, value.shape) for name, value in feed.items()]
    except AttributeError:
        return None


def _are_within(sizes: Mapping[Label, int], bounds: Bounds) -> bool:
    """Whether bounds, if there are any, hold these sizes."""
    return bool(bounds) and all(
        low <= sizes.get(label, -1) <= high for label, (low, high) in bounds.items()
    )
