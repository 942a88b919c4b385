"""The machine: its CPU, the target that builds are made for, its cores, governor and memory."""

from __future__ import annotations

import os
from pathlib import Path

from tunefarm.configs.errors import TunefarmError
from tunefarm.tuner.doctor.findings import Finding, Question, ok, problem, settings_of, warning
from tunefarm.tuner.reports.report import format_bytes

_LISTED_FEATURES = (
    *("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512vnni", "avx512bf16"),
    *("avx512fp16", "avxvnni", "amx-int8", "amx-bf16", "amx-fp16"),
    *("neon", "fullfp16", "fp16fml", "dotprod", "bf16", "i8mm", "sve"),
)
"""Those that decide how fast models are."""
_ROOT = Path("/")
"""Where proc and sys are."""
_MEMORY = Path("/proc/meminfo")
_STEADY_GOVERNORS = ("", "performance")
_LITTLE_MEMORY, _TOO_LITTLE = 2 << 30, 256 << 20


def check_cpu(question: Question) -> list[Finding]:
    """What the CPU is, and whether the kernel lets processes use its matrix tiles."""
    from tunefarm.compiler.machine.amx_state import TILE_FEATURES
    from tunefarm.compiler.target import host_features, host_target, host_tile_refusal, llvm_version
    from tunefarm.measure.machine import fingerprint

    features, name = host_features(), str(fingerprint()["cpu"])
    listed = " ".join(feature for feature in _LISTED_FEATURES if feature in features)
    text = f"{name} ({host_target().cpu} to LLVM {llvm_version()}): {listed or 'baseline'}"
    found = [ok("cpu", text, cpu=name, features=list(features), llvm=llvm_version())]
    refusal = host_tile_refusal()
    if refusal:
        advice = "a Linux of 5.16 or later permits them, where the container lets it be asked"
        found.append(warning("matrix tiles", f"AMX is not used: {refusal}", advice))
    elif any(feature.startswith(TILE_FEATURES) for feature in features):
        found.append(ok("matrix tiles", "AMX is there, permitted and was tried"))
    else:
        found.append(ok("matrix tiles", "this CPU has none (AMX)"))
    return found


def check_target(question: Question) -> list[Finding]:
    """What builds are made for, and whether this machine runs them."""
    from tunefarm.compiler.runtime.machine.check_target import can_run
    from tunefarm.tuner.from_settings import targets_of

    try:
        targets = targets_of(settings_of(question))
    except TunefarmError as error:
        return [problem("target", error.message, error.hint or "see compile.target")]
    found = []
    for target in targets:
        sizes = map(format_bytes, (target.l1_bytes, target.l2_bytes, target.l3_bytes))
        text = f"{target.key}: {target.vector_registers} vectors of {target.vector_bytes} bytes"
        text += f", caches of {', '.join(sizes)}"
        if can_run(target):
            found.append(ok("target", text, key=target.key))
        else:
            advice = "what is built for it runs elsewhere; it is measured there with --address"
            found.append(warning("target", f"{text}; not this machine", advice, key=target.key))
    return found


def check_cores(question: Question) -> list[Finding]:
    """Which cores may be used, for how much of the time, and whether they suffice to measure."""
    from tunefarm.measure.cpus import usable_cpus
    from tunefarm.measure.farm.slots import describe, plan_slots

    settings, cpus = settings_of(question), usable_cpus(_ROOT)
    total = os.cpu_count() or len(cpus.cores)
    text = f"{len(cpus.cores)} of {total} may be used"
    facts = {"available": list(cpus.cores), "total": total, "timing": list(cpus.timing)}
    found = []
    if cpus.quota is not None and cpus.quota.cpus < len(cpus.cores):
        stops = f"{cpus.quota} ({cpus.quota.folder}) stops processes in the middle of measurements"
        advice = "stopped slices are timed again; whole cores (--cpuset-cpus) instead of a quota "
        advice += "(--cpus) need no second try"
        found.append(warning("cores", stops, advice, quota=cpus.quota.cpus))
    if (nice := os.getpriority(os.PRIO_PROCESS, 0)) > 0:
        description = f"this shell has niceness {nice}: everything else goes before measurements"
        found.append(
            warning("cores", description, "start tune from a shell without nice", nice=nice)
        )
    measure, threads = settings.measure, settings.compile.threads
    try:
        plan = plan_slots(cpus, threads, slots=measure.slots, builders=measure.builders)
    except TunefarmError as error:
        return [*found, problem("cores", f"{text}; {error.message}", error.hint, **facts)]
    return [*found, ok("cores", f"{text}; {describe(plan, cpus)}", slots=len(plan.slots), **facts)]


def check_governor(question: Question) -> list[Finding]:
    """Whether the clock is left alone."""
    from tunefarm.measure.machine import fingerprint

    governor = str(fingerprint()["governor"])
    if governor in _STEADY_GOVERNORS:
        text = governor or "not told here, as on most virtual machines"
        return [ok("governor", text, governor=governor)]
    advice = "sudo cpupower frequency-set --governor performance"
    text = f"{governor} lowers the clock between measurements"
    return [warning("governor", text, advice, governor=governor)]


def check_memory(question: Question) -> list[Finding]:
    """How much memory there is, and how much of it is free."""
    from tunefarm.compiler.machine.control_groups import memory_bytes

    total, free = memory_bytes(), _free_memory(_MEMORY)
    facts = {"bytes": total, "available": free}
    if free is None:
        return [ok("memory", f"{format_bytes(total)}; how much is free is not told", **facts)]
    text = f"{format_bytes(total)}, {format_bytes(free)} of it free"
    advice = "end what needs it; limits.bytes bounds what models may ask for"
    if free < _TOO_LITTLE:
        return [problem("memory", text, advice, **facts)]
    if free < _LITTLE_MEMORY:
        return [warning("memory", text, advice, **facts)]
    return [ok("memory", text, **facts)]


def _free_memory(path: Path) -> int | None:
    """Bytes that programs can have without anything being moved to disk."""
    try:
        lines = path.read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvail"))
    except (OSError, ValueError, StopIteration):
        return None
