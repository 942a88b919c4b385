"""Run a built model on given or random inputs, and time it or each of its kernels."""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

from tunefarm.compiler.errors import FunctionError, InputError, TunefarmError, with_count
from tunefarm.compiler.runtime.artefact.array_files import read_input
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.profile import KernelTime, Profile
from tunefarm.compiler.runtime.spec.guards import sizes_text
from tunefarm.compiler.types.chosen_sizes import sizes_of_shapes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import Signature
from tunefarm.compiler.types.structure import plain
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.measure.worker.stability import relative_mad
from tunefarm.tuner.confirm.drawn_inputs import drawn_inputs
from tunefarm.tuner.reports.report import (
    KEY_CHARACTERS,
    format_seconds,
    format_share,
    short_titles,
)

_PROFILE_REPEAT = 20


@dataclass(frozen=True, slots=True)
class RunResult:
    """Seconds of each timed run, what came out, and the kernels' times if they were asked for."""

    model: str
    cpu: str  # which the code is for
    threads: int
    samples: tuple[float, ...]
    outputs: Mapping[str, str]  # name -> type
    profile: Profile | None = None
    sizes: str = ""  # those of the inputs, where the model is for several
    symbols: Mapping[str, int] = field(default_factory=dict)  # the same by name

    @property
    def latency(self) -> float:
        """Median in seconds."""
        return median(self.samples)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        profile = {} if self.profile is None else {"profile": _profile_to_json(self.profile)}
        return {
            "model": self.model,
            "cpu": self.cpu,
            "sizes": self.sizes,
            "symbols": dict(self.symbols),
            "threads": self.threads,
            "samples": list(self.samples),
            "outputs": dict(self.outputs),
            "latency": self.latency,
            "spread": relative_mad(self.samples),
            **profile,
        }


def run_model(
    executable: Executable,
    given: Mapping[str, str],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    repeat: int | None = None,
    seed: int = 0,
    profile: bool = False,
) -> tuple[dict[str, Array], RunResult]:
    """Run `repeat` times after one warm-up.

    Inputs are `given` as `read_input` reads them, or random. Dynamic sizes are those of the arrays
    and of `shapes`, which has extents by input, or one by the name of a symbol; the others are in
    the middle of their bounds. With `profile` every kernel is timed in as many runs of the model.
    `repeat` defaults to 1, then to 20. Raises InputError for a file that cannot be read or does not
    fit, and for sizes that the model was not built for; FunctionError for a function that fails or
    crashes.
    """
    repeat = repeat or (_PROFILE_REPEAT if profile else 1)
    types = executable.inputs
    read: Mapping[str, Any] = {n: read_input(text, types.get(n)) for n, text in given.items()}
    if any(port.name in read for port in executable.spec.structure.prefix.ports):
        read = executable.without_strings(read)
    known = {name: array.shape for name, array in read.items()}
    chosen = sizes_of(executable, known, shapes or {})
    inputs = {**drawn_inputs(executable, seed, chosen), **read}
    _require_surviving_run(executable, inputs)
    outputs = plain(executable.run(inputs))
    profiled = executable.profile(inputs, repeat) if profile else None
    samples = _timed(executable, inputs, repeat) if profiled is None else profiled.samples
    text = {name: _type_text(array) for name, array in outputs.items()}
    spec, threads = executable.spec, executable.threads
    sizes = ", ".join(f"{name}={size}" for name, size in chosen.items())
    sizes = sizes or sizes_text(spec.guards)
    result = RunResult(
        spec.name, spec.target.cpu, threads, samples, text, profiled, sizes, symbols=chosen
    )
    return outputs, result


def _require_surviving_run(executable: Executable, inputs: Mapping[str, object]) -> None:
    """Run in another process first, where a C function is called that may crash.

    What else goes wrong there is left to the run that follows in this process. Raises
    `FunctionError`, naming the function and its node, if the other process was ended by a signal.
    """
    called = [link for link in executable.spec.functions if link.symbol]
    if not called or not hasattr(os, "fork"):
        return
    shared = mmap.mmap(-1, max(1, executable.arena_bytes))
    arena: Array = np.frombuffer(shared, np.uint8)
    frame = executable.new_frame(arena)
    number = _signal_that_ends(lambda: executable.run_in(frame, inputs))
    if number is None:
        return
    call = executable.call_under_way(frame, inputs)
    if call:
        raise FunctionError(
            f"{call}, crashed with signal {number.name} in a run of {executable.spec.name}"
        )
    names = ", ".join(f"{link.name} ({link.symbol} in C)" for link in called)
    which = "function" if len(called) == 1 else "one of the functions"
    raise FunctionError(
        f"{which} {names} crashed with signal {number.name} in a run of {executable.spec.name}"
    )


def _signal_that_ends(run: Callable[[], object]) -> signal.Signals | None:
    """The signal by which a process that only does this ends; None if it ends by itself."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # the parent tells of it in one line
        for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV):
            signal.signal(number, signal.SIG_DFL)
        try:
            run()
        except (TunefarmError, KeyboardInterrupt):
            pass  # the parent meets it too
        finally:
            os._exit(0)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None


def _timed(executable: Executable, inputs: Mapping[str, object], repeat: int) -> tuple[float, ...]:
    samples = []
    for _ in range(repeat):
        start = time.perf_counter()
        executable.run(inputs)
        samples.append(time.perf_counter() - start)
    return tuple(samples)


def run_parts(result: RunResult) -> list[Table | str]:
    """The result for people: lines, and a table of the kernels' times if they were asked for."""
    runs, threads = with_count(len(result.samples), "run"), with_count(result.threads, "thread")
    parts: list[Table | str] = [
        *(f"{name}: {type}" for name, type in result.outputs.items()),
        f"latency: median {format_seconds(result.latency)}, "
        f"spread {format_share(relative_mad(result.samples))}, "
        f"fastest {format_seconds(min(result.samples))} ({runs}, {threads}, "
        f"code for {', '.join(filter(None, (result.cpu, result.sizes)))})",
    ]
    if result.profile is not None:
        parts += [_profile_table(result.profile), _profile_line(result.profile)]
    return parts


def _profile_table(profile: Profile) -> Table:
    """A row per distinct kernel, the costliest first, and one for all of them."""
    table = Table(header_style="bold")
    table.add_column("kernel", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("key", no_wrap=True, min_width=KEY_CHARACTERS)
    for name in ("times", "time", "share", "GFLOP/s", "schedule", "record"):
        table.add_column(name, justify="right", no_wrap=True)
    titles = short_titles([row.title for row in profile.kernels])
    for title, row in zip(titles, profile.kernels, strict=True):
        table.add_row(title, *_profile_cells(row), end_section=row is profile.kernels[-1])
    total = KernelTime(
        name="sum of kernels",
        key="",
        occurrences=sum(row.occurrences for row in profile.kernels),
        seconds=profile.seconds,
        share=1.0,
        flops=sum(row.flops for row in profile.kernels),
        schedule_source="",
        record_id=None,
    )
    table.add_row(total.title, *_profile_cells(total))
    return table


def _profile_cells(row: KernelTime) -> tuple[str, ...]:
    return (
        row.key[:KEY_CHARACTERS],
        str(row.occurrences),
        format_seconds(row.seconds),
        format_share(row.share),
        f"{row.gflops:.1f}" if row.gflops else "-",
        row.schedule_source,
        row.record_id or "-",
    )


def _profile_line(profile: Profile) -> str:
    """How the sum of the kernels compares with the whole model."""
    ratio = profile.seconds / profile.run_seconds
    return (
        f"sum of kernels: {format_seconds(profile.seconds)}, {ratio:.2f} of the "
        f"{format_seconds(profile.run_seconds)} that the whole model takes; "
        f"{format_seconds(profile.entry_seconds)} between kernels, "
        f"{format_seconds(profile.call_seconds)} for the call from Python "
        f"({with_count(profile.repeat, 'interleaved run')} each, a clock inside one of them)"
    )


def _profile_to_json(profile: Profile) -> dict[str, Any]:
    """The profile as JSON values."""
    return {
        "repeat": profile.repeat,
        "run_seconds": profile.run_seconds,
        "sum_of_kernels": profile.seconds,
        "entry_seconds": profile.entry_seconds,
        "call_seconds": profile.call_seconds,
        "stepwise_seconds": profile.seconds,  # the former name of the sum
        "kernels": [{**asdict(row), "gflops": row.gflops} for row in profile.kernels],
        "steps": [asdict(step) for step in profile.steps],
    }


def _type_text(array: Array) -> str:
    return str(TensorType(DType.from_numpy(array.dtype), array.shape))


_Shapes = Mapping[str, tuple[int, ...]]


def sizes_of(executable: Executable, files: _Shapes, given: _Shapes) -> dict[str, int]:
    """The size of every symbol: that of the inputs in files, that of --shape, or one in the middle.

    `given` has extents by the name of an input, or a single one by that of a symbol. Raises
    `InputError` for what the model does not have or was not built for.
    """
    inputs = executable.inputs
    shapes = {**files, **{name: shape for name, shape in given.items() if name in inputs}}
    symbols = {name: shape for name, shape in given.items() if name not in inputs}
    signature = executable.signature
    if signature.is_fixed:
        _check_fixed(executable, given)
        return {}
    for name, extents in symbols.items():
        if len(extents) != 1:
            raise InputError(
                f"the model has no input {name!r}, and a size of that name is one number",
                hint=f"inputs: {', '.join(inputs)}",
            )
    asked = {name: extents[0] for name, extents in symbols.items()}
    _check_files(signature, files, given)
    sizes = executable.chosen_sizes({**sizes_of_shapes(signature, shapes), **asked})
    _check_shapes(executable, signature, given, sizes)
    return sizes


def _check_fixed(executable: Executable, given: _Shapes) -> None:
    inputs = executable.inputs
    for name, shape in given.items():
        if name not in inputs:
            raise InputError(f"the model has no input {name!r}; its inputs are {', '.join(inputs)}")
        if inputs[name].shape != shape:
            raise InputError(
                f"input {name!r} cannot have the shape {list(shape)}: the model was built for "
                f"{inputs[name]}",
                hint=f"build it with bounds, for example --shape {name}=batch:1..8,...",
            )


def _check_files(signature: Signature, files: _Shapes, given: _Shapes) -> None:
    """Refuse what --shape says of inputs that come from files, where these are of other sizes."""
    settled = sizes_of_shapes(signature, files)
    said: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        **{name: (shape, files[name]) for name, shape in given.items() if name in files},
        **{name: (shape, (settled[name],)) for name, shape in given.items() if name in settled},
    }
    for name, (asked, found) in said.items():
        if asked != found:
            asked_text, found_text = (",".join(map(str, extents)) for extents in (asked, found))
            raise InputError(
                f"--shape {name}={asked_text} is not what --input says: {name}={found_text}",
                hint="leave --shape out for inputs that come from files",
            )


def _check_shapes(
    executable: Executable, signature: Signature, given: _Shapes, sizes: Mapping[str, int]
) -> None:
    """Refuse shapes of --shape that are not those at the sizes."""
    types = executable.inputs_at(sizes)
    for port in signature.inputs:
        shape = given.get(port.name)
        if shape is not None and shape != types[port.name].shape:
            raise InputError(
                f"input {port.name!r} cannot have the shape {list(shape)}: it is {port}, which is "
                f"{types[port.name]} where {', '.join(f'{n} = {s}' for n, s in sizes.items())}"
            )
