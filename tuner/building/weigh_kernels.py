"""Which share of a model's time each of its kernels has, measured or estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.kernels.count_work import kernel_bytes, kernel_flops
from compiler.kernels.kernel import FusedKernel
from compiler.runtime.kernel_report import KernelReport
from tuner.building.build_report import BuildReport, KernelUse

# A coarse roofline of one core, only to weigh kernels against each other.
_FLOPS_PER_SECOND = 50e9
_BYTES_PER_SECOND = 8e9


def build_report(
    reports: Sequence[KernelReport],
    kernels: Mapping[str, FusedKernel],
    notes: tuple[str, ...] = (),
) -> BuildReport:
    """The report of a build; `kernels` is by workload key.

    A kernel's time is the one that was measured, or an estimate: by a coarse roofline, scaled so
    that it is right on the whole for the kernels that were measured.
    """
    estimates = [_estimated_seconds(kernels[report.key]) for report in reports]
    measured = [(r.latency, e) for r, e in zip(reports, estimates, strict=True) if r.latency]
    scale = sum(m for m, _ in measured) / sum(e for _, e in measured) if measured else 1.0
    seconds = [
        report.occurrences * (report.latency or scale * estimate)
        for report, estimate in zip(reports, estimates, strict=True)
    ]
    total = sum(seconds)
    return BuildReport(
        tuple(
            KernelUse(report, cost / total if total else 0.0)
            for report, cost in zip(reports, seconds, strict=True)
        ),
        notes,
    )


def _estimated_seconds(kernel: FusedKernel) -> float:
    return max(kernel_flops(kernel) / _FLOPS_PER_SECOND, kernel_bytes(kernel) / _BYTES_PER_SECOND)
