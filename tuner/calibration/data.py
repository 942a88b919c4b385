"""The user's calibration data: .npz files with an array for each input of the model.

An array has the input's own shape (one run of the model), one more axis in front of it (as many
runs as that is long), or a longer first axis, a multiple of the model's own (runs of one batch
after the other). With dynamic shapes each run may have others. A folder is all its .npz files in
the order of their names; in one file `0/x`, `1/x`, ... are the input x of runs.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from tunefarm.compiler.errors import InputError, SettingsError, system_errors_as
from tunefarm.compiler.types.chosen_sizes import choose_sizes, sizes_of_shapes
from tunefarm.compiler.types.signature import Signature, SizedPort, ValueSource
from tunefarm.compiler.types.sizes import Size, Symbol, value_of
from tunefarm.compiler.types.tensor_type import Array, TensorType

CHECK_SHARE = REPORT_SHARE = 0.25
LEAST_SAMPLES = 8
"""Of which the three parts of a split are drawn."""


@dataclass(frozen=True, slots=True)
class SampleForm:
    """What a run of a model takes, by its signature.

    Data of `several` programs has runs of other sizes, too, which are passed over.
    """

    signature: Signature
    several: bool = False

    @property
    def ports(self) -> dict[str, SizedPort]:
        """The inputs by name."""
        return {port.name: port for port in self.signature.inputs}


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs of a model, run by run; `digest` is the SHA-256 of what they are from.

    Only the file that is being read is in memory: `places` are a file and a number within it.
    """

    form: SampleForm
    places: tuple[tuple[Path, int], ...]
    digest: str
    given: tuple[Mapping[str, Array], ...] = ()

    @staticmethod
    def of(runs: Sequence[Mapping[str, Array]], form: SampleForm) -> Samples:
        """Samples that are in memory."""
        digest = hashlib.sha256()
        for run in runs:
            for name in sorted(run):
                digest.update(np.ascontiguousarray(run[name]).data)
        places = tuple((Path(), number) for number in range(len(runs)))
        return Samples(form, places, digest.hexdigest(), tuple(runs))

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        if self.given:
            yield from (self.given[number] for _, number in self.places)
            return
        path, runs = None, []
        for place, number in self.places:
            if place != path:
                path, runs = place, _read(place, self.form)
            yield runs[number]

    def part(self, numbers: Sequence[int]) -> Samples:
        """Some of the samples."""
        places = tuple(self.places[number] for number in sorted(numbers))
        return Samples(self.form, places, self.digest, self.given)

    def spread(self, count: int) -> Samples:
        """At most so many of them, from all over."""
        return self.part(range(0, len(self), -(-len(self) // count)))

    def first(self, count: int) -> Samples:
        """At most so many of them."""
        return self.part(range(min(count, len(self))))


def read_samples(path: str, form: SampleForm) -> Samples:
    """The samples of a file or folder for a model that takes this; all of it is checked.

    Raises InputError or SettingsError, a readable line, for what cannot be read, has other names,
    shapes or element types than the inputs, holds NaN or infinities, or is empty.
    """
    place = Path(path)
    files = sorted(place.glob("*.npz")) if place.is_dir() else [place]
    if not files:
        raise SettingsError(f"{path}: there is no .npz file in this folder")
    digest = hashlib.sha256()
    places: list[tuple[Path, int]] = []
    for file in files:
        runs = _read(file, form)
        places += [(file, number) for number in range(len(runs))]
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    if not places:
        text = ", ".join(f"{name} {port}" for name, port in form.ports.items())
        raise SettingsError(f"{path}: no sample has the sizes of the program for {text}")
    return Samples(form, tuple(places), digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Split:
    """Numbers of samples: to search with, to check what was found, and to report the error of what
    was chosen in the end, which these have no part in."""

    search: list[int]
    check: list[int]
    report: list[int]

    @staticmethod
    def of(count: int, seed: int) -> Split:
        """So many samples in three parts, drawn by `seed`.

        Raises SettingsError for fewer than LEAST_SAMPLES.
        """
        if count < LEAST_SAMPLES:
            raise SettingsError(
                f"{count} sample{'s' * (count != 1)} cannot be split into data to search with, to "
                "check with and to report errors of",
                hint=f"give {LEAST_SAMPLES} samples or more",
            )
        numbers = Random(seed).sample(range(count), count)
        check, report = round(CHECK_SHARE * count), round(REPORT_SHARE * count)
        parts = numbers[:check], numbers[check : check + report], numbers[check + report :]
        checked, reported, searched = (sorted(part) for part in parts)
        return Split(searched, checked, reported)


def _read(path: Path, form: SampleForm) -> list[dict[str, Array]]:
    """The runs of one file."""
    found: list[dict[str, Array]] = []
    ports = form.ports
    for arrays in _numbered(_arrays(path), ports):
        _check_names(path, arrays, ports)
        for name, port in ports.items():
            _check_content(path, name, arrays[name], port)
        try:
            found += _cut(path, arrays, form)
        except InputError:
            if not form.several:
                raise
    return found


def _numbered(
    arrays: dict[str, Array], ports: Mapping[str, SizedPort]
) -> Iterator[dict[str, Array]]:
    """The arrays of each run, where their names begin with its number: `0/x`."""
    parts = {name: name.partition("/") for name in arrays}
    if not all(number.isdecimal() and name in ports for number, _, name in parts.values()):
        yield arrays
        return
    for number in sorted({number for number, _, _ in parts.values()}, key=int):
        yield {name: arrays[key] for key, (own, _, name) in parts.items() if own == number}


def _check_names(path: Path, arrays: Mapping[str, Array], ports: Mapping[str, SizedPort]) -> None:
    missing = [name for name in ports if name not in arrays]
    foreign = [name for name in arrays if name not in ports]
    if missing or foreign:
        has = f"has {', '.join(foreign)}" if foreign else f"lacks {', '.join(missing)}"
        raise InputError(f"{path}: it {has}; the model's inputs are {', '.join(ports)}")


def _cut(path: Path, arrays: Mapping[str, Array], form: SampleForm) -> list[dict[str, Array]]:
    """The arrays of a file cut into runs."""
    if not form.signature.is_fixed:
        return _open_runs(str(path), arrays, form.signature)
    runs = {name: _runs(path, name, arrays[name], port.type) for name, port in form.ports.items()}
    counts = {name: len(found) for name, found in runs.items()}
    if len(set(counts.values())) != 1:
        text = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise InputError(f"{path}: the inputs have different numbers of samples: {text}")
    return [dict(zip(runs, run, strict=True)) for run in zip(*runs.values(), strict=True)]


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with (
            system_errors_as(InputError, f"read {path}"),
            np.load(path, allow_pickle=False) as file,
        ):
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise InputError(f"{path}: it is no .npz file", hint="numpy.savez(file, x=array)")
            return {name: file[name] for name in file.files}
    except (ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: it is no .npz file of plain arrays: {error}") from error


def _check_content(path: Path, name: str, array: Array, port: SizedPort) -> None:
    """Raise `InputError` for elements that are none of an input's; caches may begin empty."""
    if array.dtype != port.dtype.numpy:
        raise InputError(
            f"{path}: {name} is {array.dtype}, the model's input is {port.dtype.numpy}",
            hint=f"{name}.astype(numpy.{port.dtype.numpy})",
        )
    if array.size == 0 and not port.is_dynamic:
        raise InputError(f"{path}: {name} is empty")
    if port.dtype.is_float and not np.isfinite(array).all():
        raise InputError(f"{path}: {name} holds NaN or infinities")


def _runs(path: Path, name: str, array: Array, type: TensorType) -> list[Array]:
    """The array of an input cut into runs of the model."""
    if array.shape == type.shape:
        return [array]
    if array.shape[1:] == type.shape:
        return list(array)
    batch = type.shape[0] if type.shape else 0
    fits = batch and array.ndim == len(type.shape) and array.shape[1:] == type.shape[1:]
    if not fits or array.shape[0] % batch:
        raise InputError(
            f"{path}: {name} has the shape {list(array.shape)}, the model's input "
            f"{list(type.shape)}",
            hint="give samples of that shape one behind the other along the first axis",
        )
    return [array[begin : begin + batch] for begin in range(0, len(array), batch)]


_Run = dict[str, Array]


def _open_runs(path: str, arrays: Mapping[str, Array], signature: Signature) -> list[_Run]:
    """The arrays of a file cut into runs of the model.

    Raises InputError, a readable line, for shapes that are none of the model's.
    """
    ports = {port.name: port for port in signature.inputs}
    given = {name: arrays[name] for name in ports}
    more = {name: given[name].ndim - len(port.shape) for name, port in ports.items()}
    if set(more.values()) == {1}:
        counts = {name: len(array) for name, array in given.items()}
        if len(set(counts.values())) != 1:
            text = ", ".join(f"{count} of {name}" for name, count in counts.items())
            raise InputError(f"{path}: the inputs have different numbers of samples: {text}")
        runs = [
            {name: array[n] for name, array in given.items()} for n in range(max(counts.values()))
        ]
    else:
        runs = _cut_open(given, ports)
    for run in runs:
        _check(path, run, signature)
    return runs


def _cut_open(arrays: _Run, ports: Mapping[str, SizedPort]) -> list[_Run]:
    """The arrays, or parts of them where their common first axis is too long for its symbol."""
    for symbol in filter(None, map(_first, ports.values())):
        own = [name for name, port in ports.items() if _first(port) == symbol]
        lengths = {len(arrays[name]) for name in own if arrays[name].ndim}
        if len(lengths) != 1 or (length := lengths.pop()) <= symbol.high:
            continue
        begins = range(0, length, symbol.high)
        return [
            {
                name: array[begin : begin + symbol.high] if name in own else array
                for name, array in arrays.items()
            }
            for begin in begins
        ]
    return [arrays]


def _first(port: SizedPort) -> Symbol | None:
    """The symbol that an input's first axis is, if it is one."""
    first = port.shape[0] if port.shape else 0
    return first.symbol if isinstance(first, Size) else None


def _check(path: str, run: _Run, signature: Signature) -> None:
    """Raise `InputError` unless a run's shapes are those of the inputs, within all bounds."""
    for port in signature.inputs:
        array = run[port.name]
        if array.ndim != len(port.shape):
            raise _misfit(path, port, array)
    sizes = sizes_of_shapes(signature, {name: array.shape for name, array in run.items()})
    for source in signature.sources:
        if isinstance(source, ValueSource):
            sizes[source.symbol.name] = int(run[source.input].reshape(-1)[source.position])
    try:
        sizes = choose_sizes(signature, sizes)
    except InputError as error:
        raise InputError(f"{path}: {error.message}", hint=error.hint) from None
    for port in signature.inputs:
        shape = tuple(value_of(size, sizes) for size in port.shape)
        if run[port.name].shape != shape:
            raise _misfit(path, port, run[port.name])


def _misfit(path: str, port: SizedPort, array: Array) -> InputError:
    return InputError(
        f"{path}: {port.name} has the shape {list(array.shape)}, the model's input is {port}"
    )
