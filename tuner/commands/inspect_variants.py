"""`tune inspect F --stage variants`: what an artifact holds for each CPU, and a rehearsal of it.

    variant           needs here            rehearsal
    sapphirerapids    avx512f, ... missing  not rehearsed
    x86-64-v3         chosen                ran; the outputs of others are compared with its own

A variant that this CPU can run is loaded as a CPU without the features of better ones would load
it. For all targets that have a name the variant is printed that such a CPU loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.table import Table

from tunefarm.compiler.errors import TunefarmError, with_count
from tunefarm.compiler.runtime.artefact.artefact import Contents, Variant, read_contents
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.machine.check_target import can_run, lacking_features, platform_of
from tunefarm.compiler.runtime.spec.guards import sizes_text
from tunefarm.compiler.runtime.spec.kernel_report import TUNED
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.configs.settings import load_target, targets
from tunefarm.tuner.confirm.drawn_inputs import drawn_inputs
from tunefarm.tuner.confirm.latency import outputs_agree, outputs_near
from tunefarm.tuner.reports.report import format_bytes
from tunefarm.tuner.verify.canary import different_outputs

MOST_NAMED = 4
"""Features that a table names; JSON has all."""


class Status(StrEnum):
    """What a rehearsal showed."""

    RAN = "ran"
    AGREES = "same outputs"
    DIFFERS = "outputs differ"
    FAILED = "failed"
    NOT_REHEARSED = "not rehearsed"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What came of running a variant here, and details: where it differs, or what is lacking."""

    status: Status
    why: str = ""

    def __str__(self) -> str:
        return f"{self.status}: {self.why}" if self.why else str(self.status)


@dataclass(frozen=True, slots=True)
class VariantsReport:
    """The variants of an artifact, with what came of rehearsing each, and by the name of a target
    the number of the variant that such a CPU loads (None: it is refused)."""

    path: str
    bytes: int
    contents: Contents
    rehearsals: tuple[Rehearsal, ...]
    loaded: Mapping[str, int | None]

    @property
    def has_failed(self) -> bool:
        """Whether a variant does not do here what it should."""
        return any(item.status in (Status.DIFFERS, Status.FAILED) for item in self.rehearsals)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        variants, chosen = self.contents.variants, self.contents.chosen
        return {
            "artifact": self.path,
            "digest": self.contents.digest,
            "parents": list(self.contents.parents),
            "bytes": self.bytes,
            "chosen": None if chosen is None else variants[chosen].target.cpu,
            "variants": [
                {
                    "cpu": variant.target.cpu,
                    "target": variant.target.key,
                    "fallback": variant.fallback,
                    "sizes": _sizes(variant),
                    "features": list(variant.target.features),
                    "lacking": _lacking(variant.target),
                    "kernels": _kernels(variant),
                    "tuned_kernels": _kernels(variant, TUNED),
                    "own_bytes": variant.own_bytes,
                    "shared_bytes": variant.shared_bytes,
                    "repacked_bytes": variant.repacked_bytes,
                    "rehearsal": {"status": rehearsal.status.value, "why": rehearsal.why},
                }
                for variant, rehearsal in zip(variants, self.rehearsals, strict=True)
            ],
            "loaded_by": {
                name: None if number is None else variants[number].target.cpu
                for name, number in self.loaded.items()
            },
        }

    def table(self) -> Table:
        """A row per variant, the preferred one first."""
        table = Table(header_style="bold")
        for name in ("variant", "here", "tuned", "own", "shared", "repacked", "rehearsal"):
            table.add_column(name, justify="left" if name in _TEXTS else "right", overflow="fold")
        for number, variant in enumerate(self.contents.variants):
            lacking = _lacking(variant.target)
            here = "loaded" if number == self.contents.chosen else "can run"
            sizes = f" ({'; '.join(_sizes(variant))})" if any(_sizes(variant)) else ""
            fallback = ", fallback" if variant.fallback else ""
            table.add_row(
                f"{variant.target.cpu}{fallback}{sizes}",
                f"lacks {_some(lacking)}" if lacking else here,
                f"{_kernels(variant, TUNED)} of {_kernels(variant)}",
                *map(
                    format_bytes,
                    (variant.own_bytes, variant.shared_bytes, variant.repacked_bytes),
                ),
                str(self.rehearsals[number].status),
            )
        return table

    def lines(self) -> list[str]:
        """What is printed below the table."""
        lines = [
            f"{variant.target.cpu}: {rehearsal}"
            for variant, rehearsal in zip(self.contents.variants, self.rehearsals, strict=True)
            if rehearsal.why and rehearsal.status is not Status.NOT_REHEARSED
        ]
        variants = self.contents.variants
        for number, variant in enumerate(variants):
            names = [name for name, loads in self.loaded.items() if loads == number]
            lines.append(f"code for {variant.target.cpu} is loaded by: {', '.join(names) or '-'}")
        if refused := [name for name, number in self.loaded.items() if number is None]:
            lines.append(f"refused: {', '.join(refused)}")
        count = with_count(len(variants), "variant")
        lines.append(f"{self.path}: {count}, {format_bytes(self.bytes)}")
        lines.append(f"digest: {self.contents.digest}")
        return [*lines, *(f"parent: {digest}" for digest in self.contents.parents[:1])]


_TEXTS = ("variant", "here", "rehearsal")
_UNROUNDED = ("default", "strict", "deterministic")
"""Precisions that compute in f32: variants differ by the order of sums alone, if at all."""


def inspect_variants(path: str) -> VariantsReport:
    """Read an artifact, and run each of its variants that this CPU can run on random inputs.

    Raises `ArtefactError` for what is no artifact or is damaged.
    """
    contents = read_contents(path)
    variants = contents.variants
    loaded = {name: _loads(_named(name), variants) for name in targets()}
    size = Path(path).stat().st_size
    return VariantsReport(path, size, contents, tuple(_rehearsals(variants)), loaded)


def _named(name: str) -> Target:
    return Target.from_json(load_target(name).model_dump())


def _loads(host: Target, variants: Sequence[Variant]) -> int | None:
    """The number of the variant that a CPU loads."""
    able = (number for number, item in enumerate(variants) if can_run(item.target, host))
    return next(able, None)


def _rehearsals(variants: Sequence[Variant]) -> list[Rehearsal]:
    reference, found = None, []
    inputs: Mapping[str, Array] = {}
    for variant in variants:
        if not can_run(variant.target):
            lacking = ", ".join(_lacking(variant.target))
            found.append(Rehearsal(Status.NOT_REHEARSED, f"this machine lacks {lacking}"))
            continue
        try:
            first, *others = variant.programs
            executable = Executable(first, others=others)
            if reference is None:
                inputs = drawn_inputs(executable)
                executable.run(inputs)
                reference = executable
                found.append(Rehearsal(Status.RAN))
                continue
            rounds = executable.spec.numerics not in _UNROUNDED
            agree = outputs_near if rounds else outputs_agree
            differences = different_outputs(reference, executable, inputs, agree=agree)
        except TunefarmError as error:
            found.append(Rehearsal(Status.FAILED, error.message))
            continue
        worst = ", ".join(f"{item.output!r} by {item.error:.2g}" for item in differences)
        compared = f"compared with {reference.spec.target.cpu}"
        status = Status.DIFFERS if differences else Status.AGREES
        found.append(Rehearsal(status, f"{worst}, {compared}" if worst else compared))
    return found


def _lacking(target: Target) -> list[str]:
    """What this machine lacks for a target; its platform if that is another one."""
    host = host_target()
    if platform_of(target) != platform_of(host):
        return [platform_of(target)]
    return [] if can_run(target) else lacking_features(target, host).split(", ")


def _some(features: Sequence[str]) -> str:
    more = len(features) - MOST_NAMED
    return ", ".join(features[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _sizes(variant: Variant) -> list[str]:
    return [sizes_text(program.guards) for program in variant.programs]


def _kernels(variant: Variant, source: str | None = None) -> int:
    """Distinct kernels, of all programs; those of a source of schedules."""
    reports = {report for program in variant.programs for report in program.kernels}
    return sum(source in (None, report.schedule_source) for report in reports)
