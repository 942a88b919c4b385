"""What notebooks show of an executable and of its profile."""

from __future__ import annotations

from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.html_text import (
    html_lines,
    html_seconds,
    html_table,
    html_text,
)
from tunefarm.compiler.runtime.execution.profile import Profile
from tunefarm.compiler.with_count import with_count

_KEY = 8  # characters of a kernel's key


def executable_html(executable: Executable) -> str:
    """The model's inputs and outputs, and how each of its kernels was built."""
    spec, signature = executable.spec, executable.signature
    ports = [
        (kind, port.name, signature.port_text(port))
        for kind, own in (("input", signature.inputs), ("output", signature.outputs))
        for port in own
    ]
    kernels = [
        (
            kernel.title,
            kernel.key[:_KEY],
            str(kernel.occurrences),
            kernel.schedule_source,
            "-" if kernel.latency is None else html_seconds(kernel.latency),
            kernel.numerics,
            kernel.note or kernel.not_vectorised,
        )
        for kernel in executable.kernels
    ]
    columns = ("kernel", "key", "times", "schedule", "latency", "numerics", "note")
    built = (
        f"{spec.target.cpu}, {with_count(executable.threads, 'thread')}, precision {spec.numerics}"
    )
    return (
        f"<div><b>{html_text(spec.name)}</b></div>{html_lines([f'built for {built}'])}"
        f"{html_table(('', 'name', 'type'), ports, texts=3)}{html_table(columns, kernels, texts=2)}"
    )


def profile_html(profile: Profile) -> str:
    """Each kernel's time, the costliest first, and that of the whole model."""
    rows = [
        (
            row.title,
            row.key[:_KEY],
            str(row.occurrences),
            html_seconds(row.seconds),
            f"{100 * row.share:.1f} %",
            f"{row.gflops:.1f}" if row.gflops else "-",
            row.schedule_source,
        )
        for row in profile.kernels
    ]
    columns = ("kernel", "key", "times", "time", "share", "GFLOP/s", "schedule")
    line = (
        f"the model takes {html_seconds(profile.run_seconds)}, the sum of kernels is "
        f"{html_seconds(profile.seconds)} ({profile.repeat} runs of each kind)"
    )
    return f"{html_table(columns, rows, texts=2)}{html_lines([line])}"
