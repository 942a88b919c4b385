"""Checks that measure on this machine: Ray, tried with a measurement, and the machine's noise."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from tunefarm.configs.errors import TunefarmError
from tunefarm.measure.farm.ray_address import WITHOUT_RAY
from tunefarm.tuner.doctor.findings import Finding, Question, ok, problem, settings_of, warning
from tunefarm.tuner.reports.report import format_bytes, format_share

if TYPE_CHECKING:
    from tunefarm.measure.farm.noise import Noise
    from tunefarm.measure.measurement import MeasureResult

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
