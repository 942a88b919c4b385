"""The checks by their names. Each is a function of a question; its module says what it looks at."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from tunefarm.configs.errors import DatabaseError, SettingsError, TunefarmError
from tunefarm.measure.farm.ray_address import WITHOUT_RAY
from tunefarm.measure.sandbox.isolated import ask_isolated
from tunefarm.tuner.doctor.checkup import Finding, Question, ok, problem, settings_of, warning
from tunefarm.tuner.reports.report import format_bytes, format_share

if TYPE_CHECKING:
    from tunefarm.measure.farm.noise import Noise
    from tunefarm.measure.measurement import MeasureResult


# Where a user's files are: the database, the compile cache, the folder for temporary files.


_MOUNTS = Path("/proc/mounts")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "afs", "ceph", "lustre")
"""File systems on which SQLite's locks may not hold (https://www.sqlite.org/faq.html#q5)."""
_LOCKED_SECONDS = 3.0
_READ_WHOLE = 64 << 20
"""Bytes of a database file that is read as a whole; that takes seconds."""
_LITTLE_SPACE, _TOO_LITTLE = 1 << 30, 64 << 20


def check_temporary(question: Question) -> list[Finding]:
    """Whether temporary files can be made, and how much space there is for them."""
    name, advice = "temporary files", "set TMPDIR to a folder with free space"
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"tunefarm")
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return [problem(name, f"none can be made: {error.strerror or error}", advice)]
    text = f"{folder}, {format_bytes(free)} free"
    grade = problem if free < _TOO_LITTLE else warning if free < _LITTLE_SPACE else None
    facts = {"folder": folder, "free": free}
    return [ok(name, text, **facts) if grade is None else grade(name, text, advice, **facts)]


def check_cache(question: Question) -> list[Finding]:
    """Whether compiled kernels are kept, where, how much space they take and have."""
    from tunefarm.configs.settings import cache_folder, cache_problem

    name, settings = "compile cache", settings_of(question)
    if reason := cache_problem(settings):
        return [warning(name, reason, "until then every build compiles everything")]
    folder = cache_folder(settings)
    if folder is None:
        return [ok(name, "none: cache.enabled is false, or this user has no home")]
    if not folder.exists():
        return [ok(name, f"{folder}, which the first build makes", folder=str(folder))]
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    free, used = shutil.disk_usage(folder).free, sum(sizes)
    owner = "yours" if folder.stat().st_uid == os.geteuid() else "root's"
    text = f"{folder}, {owner}: {format_bytes(used)} in {len(sizes)} files, "
    text += f"{format_bytes(free)} free"
    facts = {"folder": str(folder), "bytes": used, "free": free}
    if not may_write(folder):
        advice = "what is built is not kept: name a folder of your own in cache.folder"
        return [warning(name, f"{text}; it cannot be written", advice, **facts)]
    if free < _LITTLE_SPACE:
        advice = "free some space, or name another folder in cache.folder"
        return [warning(name, text, advice, **facts)]
    return [ok(name, text, **facts)]


def check_database(question: Question) -> list[Finding]:
    """Whether the database can be read and written, is sound, and of this version's schema."""
    from tunefarm.db import schema
    from tunefarm.db.backend import backend_of
    from tunefarm.db.check import schema_of

    name, location = "database", settings_of(question).database.url
    location = question.db or location
    try:
        shown = backend_of(location).name
        path = None if "://" in location else Path(location)
        if path is not None and not path.exists():
            return [_missing(path, asked=question.db is not None)]
        revision = schema_of(location)
    except DatabaseError as error:
        return [problem(name, error.message, error.hint or "see tune db check")]
    again = shlex.join(["--db", location]) if "://" not in location else "--db URL"
    if revision is None:
        return [ok(name, f"{shown} is empty: the first job makes its tables")]
    if revision < schema.REVISION:
        text = f"{shown} has schema {revision}, this version's is {schema.REVISION}"
        return [warning(name, text, f"tune db upgrade {again} (a backup is made first)")]
    if revision > schema.REVISION:
        text = f"{shown} has schema {revision}, newer than this version's {schema.REVISION}"
        return [problem(name, text, "upgrade tunefarm")]
    size = None if path is None else path.stat().st_size
    found = _content(location, shown, size, again)
    return found if path is None else [*found, *_of_the_file(path)]


def _missing(path: Path, *, asked: bool) -> Finding:
    """Of a database file that is not there."""
    if asked:
        return problem("database", f"there is no {path}", "tune MODEL --db DB makes one")
    if not may_write(path.absolute().parent):
        text = f"{path} is not there, and cannot be made in {path.absolute().parent}"
        return problem("database", text, "go to your own folder, or name one with --db")
    return ok("database", f"{path} is not there yet: the first job makes it")


def _content(location: str, shown: str, size: int | None, again: str) -> list[Finding]:
    """What is in the database, and whether it is sound."""
    from tunefarm.db import queries
    from tunefarm.db.check import check
    from tunefarm.db.store import Store

    whole = size is None or size <= _READ_WHOLE
    try:
        with Store.open(location, create=False, read_only=True) as store:
            problems = check(store) if whole and size is not None else []
            jobs = Counter(job.state for job in queries.jobs(store))
            tasks, last = len(queries.tasks(store)), queries.last_trial(store)
    except DatabaseError as error:
        return [problem("database", error.message, error.hint or f"tune db check {again}")]
    if problems:
        text = f"{shown} is damaged: {problems[0]}"
        advice = "restore a backup, or save what is intact: tune db salvage"
        return [problem("database", text, advice, problems=problems)]
    description = ", ".join(f"{count} {state}" for state, count in sorted(jobs.items())) or "none"
    text = f"{shown}: {'' if size is None else format_bytes(size) + ', '}"
    text += f"{tasks} kernels, newest trial {last}; jobs: {description}"
    text += "; every row is intact" if whole and size is not None else "; not read as a whole"
    facts = {"bytes": size, "kernels": tasks, "jobs": dict(jobs)}
    if jobs["lost"]:
        advice = "the same tune command goes on from what a lost job recorded"
        return [warning("database", text, advice, **facts)]
    return [ok("database", text, **facts)]


def _of_the_file(path: Path) -> list[Finding]:
    """What its folder and file system do to a database file."""
    from tunefarm.db.check import is_locked

    found, folder = [], path.absolute().parent
    if not (may_write(path) and may_write(folder)):
        text = f"{path} can only be read: builds work, and nothing is recorded"
        found.append(warning("database", text, "for tuning, a copy that you may write"))
    elif is_locked(path, _LOCKED_SECONDS):
        text = f"another process keeps {path} from being written"
        found.append(
            warning("database", text, "a job waits for it; tune db list shows whose it is")
        )
    size, free = path.stat().st_size, shutil.disk_usage(folder).free
    if free < max(2 * size, _TOO_LITTLE):
        text = f"{format_bytes(free)} are free for {path} of {format_bytes(size)}"
        advice = "free some space: a job waits when the disk is full, an upgrade needs a copy"
        found.append(warning("database", text, advice, free=free))
    kind = file_system(path, _MOUNTS)
    if kind in _REMOTE:
        text = f"{path} is on a file system of kind {kind}, where locks may not hold"
        found.append(warning("database", text, "use a local disk, or PostgreSQL for many machines"))
    return found


def may_write(path: Path) -> bool:
    """Whether this process may write to a file or folder."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def file_system(path: Path, mounts: Path) -> str:
    """The kind of file system that a path is on; "" if that is not told."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    real = Path(os.path.realpath(path))
    kind, longest = "", -1
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        place = fields[1].replace("\\040", " ")
        if real.is_relative_to(place) and len(place) > longest:
            kind, longest = fields[2], len(place)
    return kind


# The machine: its CPU, the target that builds are made for, its cores, governor and memory.


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
    text = f"{name}, {host_target().cpu} to LLVM {llvm_version()}: {listed or 'baseline'}"
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


# The program itself: its settings, the command that is found, the C compiler.


_ENTRY = "tunefarm.tuner.commands.entry"
_LEAST_PYTHON = (3, 11)
_SECONDS = 20.0


def check_settings(question: Question) -> list[Finding]:
    """Whether configuration and environment can be read."""
    from tunefarm.configs.settings import load_settings

    try:
        load_settings(question.config, {"database.url": question.db})
    except SettingsError as error:
        advice = error.hint or "the other checks look at the defaults"
        return [problem("settings", error.message, advice)]
    return [ok("settings", f"{question.config or 'the defaults'}, and the environment")]


def check_program(question: Question) -> list[Finding]:
    """Which Python this is, and whether `tune` on the path is this program."""
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"Python {version} ({sys.executable}) on {sys.platform}"
    if sys.version_info < _LEAST_PYTHON or sys.platform != "linux":
        return [problem("program", text, "tunefarm needs Python 3.11 or later on Linux")]
    found = shutil.which("tune")
    if found is None:
        return [warning("program", f"{text}; no tune on PATH", "activate its environment first")]
    if not is_ours(Path(found)):
        return [
            warning(
                "program",
                f"{text}; {found} is another program (Ray has a script of that name)",
                "type tunefarm instead of tune, or install tunefarm again after Ray",
            )
        ]
    return [ok("program", f"{text}; {found}", python=version, script=found)]


def is_ours(script: Path) -> bool:
    """Whether a script starts this program."""
    try:
        return _ENTRY in script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def check_compiler(question: Question) -> list[Finding]:
    """Whether there is what `tune build --emit` of C forms needs."""
    from tunefarm.compiler.runtime.machine.toolchain import find_toolchain
    from tunefarm.tuner.from_settings import target_of

    needed = "only tune build --emit c-header+shared-library and object need it"
    try:
        target = target_of(settings_of(question))
        found = find_toolchain(target, static=True)
    except TunefarmError as error:
        return [warning("C compiler", error.message, f"{needed}: {error.hint}".rstrip(": "))]
    description = subprocess.run(
        [*found.compiler, "--version"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        check=False,
    )
    line = next(iter(description.stdout.splitlines()), found.command)
    return [ok("C compiler", f"{found.command} ({line}), {found.objcopy}", command=found.command)]


# Checks that measure on this machine: Ray, tried with a measurement, and the machine's noise.


_SHARED_MEMORY = Path("/dev/shm")
_NEEDED_SHARED = 256 << 20  # twice the object store
_MUCH_STEAL, _MUCH_QUEUED = 0.02, 0.10


def check_ray(question: Question) -> list[Finding]:
    """Whether Ray starts, and measures a kernel."""
    settings = settings_of(question)
    found = []
    address = settings.measure.address
    free = _free(_SHARED_MEMORY)
    if address is None and (free is None or free < _NEEDED_SHARED):
        description = "is not there" if free is None else f"has {format_bytes(free)} free"
        advice = "give the container more: docker run --shm-size=1g"
        found.append(warning("Ray", f"{_SHARED_MEMORY} {description}", advice))
    begin = monotonic()
    version = metadata.version("ray")
    where = f"the cluster at {address}" if address else "Ray on this machine"
    try:
        results = _measure("ray", question, 0.0)
    except TunefarmError as error:
        # An address that was asked for is the user's to mend, a Ray of our own is not needed.
        advice = error.hint or WITHOUT_RAY
        return [*found, problem("Ray", f"Ray {version}: {error.message}", advice)]
    seconds = monotonic() - begin
    if not results[0].samples:
        text = f"Ray {version}: a kernel came out {results[0].status}: {_first(results[0].error)}"
        return [*found, problem("Ray", text, WITHOUT_RAY)]
    text = f"Ray {version}: {where} measured a kernel, {seconds:.0f} s with its start and end"
    return [*found, ok("Ray", text, version=version, seconds=seconds)]


def check_noise(question: Question) -> list[Finding]:
    """How small a difference shows on this machine, and what disturbs it."""
    from tunefarm.measure.farm.noise import noise_of

    options = _timing(question)
    try:
        results = _measure("local", question, question.seconds)
    except TunefarmError as error:
        advice = error.hint or "tune --debug --runner local shows why"
        return [problem("noise", f"nothing can be measured: {error.message}", advice)]
    noise = noise_of(results, options)
    failed = [result for result in results if not result.samples]
    if failed:
        text = f"a kernel came out {failed[0].status}: {_first(failed[0].error)}"
        return [problem("noise", text, "tune db check and the library versions above may tell why")]
    if noise is None:
        text = f"{len(results)} measurements in {question.seconds:g} s are too few to judge it"
        return [warning("noise", text, "tune doctor --seconds 60")]
    return [*disturbances(noise), verdict(noise)]


def disturbances(noise: Noise) -> list[Finding]:
    """What others take of the machine."""
    text = f"{format_share(noise.steal)} of the time"
    if noise.steal > _MUCH_STEAL:
        advice = "other virtual machines share these cores: another time, or dedicated cores"
        steal = warning("hypervisor steal", text, advice, steal=noise.steal)
    else:
        steal = ok("hypervisor steal", text, steal=noise.steal)
    text = f"others had the core for {format_share(noise.queued)} of the time"
    if noise.queued > _MUCH_QUEUED:
        advice = "end what else computes here (top shows it), or leave cores to it (taskset)"
        return [steal, warning("queueing", text, advice, queued=noise.queued)]
    return [steal, ok("queueing", text, queued=noise.queued)]


def verdict(noise: Noise) -> Finding:
    """What shows on this machine, in words."""
    from tunefarm.measure.farm.noise import COARSE, FINE, Verdict

    facts: dict[str, Any] = noise.to_json()

    def pairs(difference: float) -> str:
        count = noise.pairs_for(difference)
        return f"{count} pairs ({count * noise.pair_seconds:.2g} s)"

    measured = (
        f"a kernel against itself, {noise.measurements} times: {noise.pairs} pairs are sure to "
        f"±{100 * noise.interval:.1f} %, and hold 1 in {format_share(noise.covered)}; the core's "
        f"own speed wandered by {100 * noise.wander:.0f} %"
    )
    one = f"differences of 1 % show within {pairs(0.01)}"
    if noise.verdict is Verdict.QUIET:
        return ok("noise", f"quiet: {one}. {measured}", **facts)
    if noise.verdict is Verdict.NOISY:
        text = (
            f"noisy: differences of {100 * COARSE:.0f} % show within {pairs(COARSE)}, but {one}. "
        )
        advice = "tuning works and takes longer: give it more --minutes, or wait for a quiet hour"
        return warning("noise", text + measured, advice, **facts)
    text = (
        f"too busy: differences of {100 * FINE:.0f} % take {pairs(FINE)}, of {100 * COARSE:.0f} % "
    )
    text += f"{pairs(COARSE)}, and a candidate gets {noise.most}. "
    advice = "wait until it is quieter, or measure on another machine: tune --address HOST:PORT"
    return problem("noise", text + measured, advice, **facts)


def _measure(runner: str, question: Question, seconds: float) -> Sequence[MeasureResult]:
    """What a runner measures of a kernel against itself. Raises TunefarmError."""
    from tunefarm.measure.farm.make_runner import create_runner
    from tunefarm.measure.farm.noise import measure_itself
    from tunefarm.tuner.from_settings import target_of
    from tunefarm.tuner.search.measuring import runner_options

    settings = settings_of(question)
    target = target_of(settings)
    wanted = replace(runner_options(settings, target), overlap="never")
    if runner == "local":
        from tunefarm.compiler.target import host_target

        target = host_target()
        wanted = replace(wanted, targets=(target,), address="local", token_file=None)
    options = _timing(question)
    with create_runner(runner, wanted) as running:
        return measure_itself(running, target, wanted.threads, options, seconds)


def _timing(question: Question) -> dict[str, float | int]:
    from tunefarm.tuner.search.measuring import timing_options

    return timing_options(settings_of(question))


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _first(text: str) -> str:
    return next(iter(text.splitlines()), "no reason given")


# Whether the libraries that the package asks for are here and can be imported.

DISTRIBUTION = "tunefarm"
_IMPORT_SECONDS = 60.0
_AT_ONCE = 2  # libraries
_OF_AN_EXTRA = "extra =="
_SEPARATORS = re.compile(r"[-_.]+")
_BEHIND_NAME = re.compile(r"[^\w.-]")  # in a requirement

Failures = Callable[[Sequence[str]], Mapping[str, str]]
"""Why modules cannot be imported, by name; those that can be are left out."""


def check_libraries(question: Question) -> list[Finding]:
    """Whether what the package asks for, without its extras, is there and can be imported."""
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        text = "tunefarm is not installed: which libraries it needs is not known"
        return [warning("libraries", text, "pip install tunefarm, or pip install . in its sources")]
    return judge_libraries(requirements, _installed, packages_distributions(), import_failures)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def judge_libraries(
    requirements: Sequence[str],
    installed: Callable[[str], str],
    modules: Mapping[str, Sequence[str]],
    failures: Failures,
) -> list[Finding]:
    """What is missing or broken of these requirements, a line each; one line for all the others.

    `installed` is the version of a library, "" if it is not there; `modules` has the libraries of
    each top-level module.
    """
    asked = [text for text in requirements if _OF_AN_EXTRA not in text]
    names = [_BEHIND_NAME.split(text)[0] for text in asked]
    versions = {name: installed(name) for name in names}
    imported: dict[str, str] = {}
    for module, owners in sorted(modules.items()):  # re2 behind _re2, which is within it
        imported |= dict.fromkeys(map(_normal, owners), module)
    module_of = {name: imported.get(_normal(name), name.replace("-", "_")) for name in names}
    broken = failures([module_of[name] for name in names if versions[name]])
    found: list[Finding] = []
    for name in names:
        why = broken.get(module_of[name], "")
        if not versions[name] or why:
            what = f"{versions[name]} cannot be imported: {why}" if why else "is not installed"
            advice = f"pip install {'--force-reinstall ' if why else ''}{name}"
            found.append(problem("libraries", f"{name} {what}", advice, library=name))
    wrong = {finding.facts["library"] for finding in found}
    right = {name: text for name, text in versions.items() if name not in wrong}
    description = ", ".join(f"{name} {text}" for name, text in sorted(right.items()))
    return [*found, *([ok("libraries", description, versions=right)] if right else [])]


def _normal(name: str) -> str:
    return _SEPARATORS.sub("-", name).lower()


def import_failures(names: Sequence[str]) -> dict[str, str]:
    """See `Failures`; each module is imported in a process of its own."""

    def failure(module: str) -> str:
        return ask_isolated("tunefarm.tuner.doctor.can_import", [module], _IMPORT_SECONDS).failure

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = zip(names, pool.map(failure, names), strict=True)
        return {name: why for name, why in found if why}


CheckFunction = Callable[[Question], list[Finding]]

CHECK_FUNCTIONS: Mapping[str, CheckFunction] = {
    "settings": check_settings,
    "program": check_program,
    "libraries": check_libraries,
    "cpu": check_cpu,
    "target": check_target,
    "cores": check_cores,
    "governor": check_governor,
    "memory": check_memory,
    "temporary files": check_temporary,
    "database": check_database,
    "compile cache": check_cache,
    "C compiler": check_compiler,
    "Ray": check_ray,
    "noise": check_noise,
}
