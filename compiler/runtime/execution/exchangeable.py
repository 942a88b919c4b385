"""ExchangeableBuilds: several builds of one model, of which a run takes any one's code for each
kernel.

    build 0   kernel a: 4 rows    kernel b: 2 rows     taking {a: 0, b: 1}
    build 1   kernel a: 6 rows    kernel b: 8 rows  -> kernel a: 4 rows    kernel b: 8 rows

What is taken differs in the kernels' code and in how their constants are packed, and in nothing
else: the steps, the places of values and of workspaces, and with them the entry, are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.runtime.entry.entry import clocked_entry_of, entry_of
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.profile import Clocked
from tunefarm.compiler.runtime.machine.thread_pool import with_pool
from tunefarm.compiler.runtime.spec.executable_spec import (
    CallStep,
    CopyStep,
    ExecutableSpec,
    Location,
    Place,
    RunStep,
    aligned,
)
from tunefarm.compiler.runtime.spec.verify_spec import verify_spec


class ExchangeableBuilds:
    """Builds of one model under one plan; a kernel is named by its workload key."""

    def __init__(self, builds: Sequence[ExecutableSpec]) -> None:
        """Raises VerifyError for builds whose kernels cannot be exchanged: their steps are not the
        same calls, sizes are dynamic, or they have loops or custom operators."""
        first = builds[0]
        problem = next((text for other in builds if (text := _problem(first, other))), "")
        if problem:
            raise VerifyError(f"kernels of {first.name} cannot be exchanged: {problem}")
        self.builds = tuple(builds)
        self.kernels = tuple(report.key for report in first.kernels)
        self._number = {part.symbol: number for number, part in enumerate(first.objects)}
        reports = zip(*(build.kernels for build in self.builds), strict=True)
        self._room = [max(report.workspace_bytes for report in own) for own in reports]
        self._steps, self._arena_bytes = self._laid_out()

    def alternatives(self, kernel: str) -> list[int]:
        """The builds that differ in the kernel's code, the first of each that are alike."""
        number = self.kernels.index(kernel)
        code = [build.objects[number].code for build in self.builds]
        return [code.index(item) for item in dict.fromkeys(code)]

    def taking(self, builds: Mapping[str, int]) -> ExecutableSpec:
        """The model with each kernel's code from the build of this number, else from the first."""
        first = self.builds[0]
        taken = [self.builds[builds.get(key, 0)] for key in self.kernels]
        slots = []
        for step, place in self._constants_of(taken):
            spec = taken[self._number[step.symbol]] if isinstance(step, CallStep) else first
            digest = spec.digests[len(spec.objects) + place.number]
            slots.append((spec.constants[place.number], digest))
        spec = replace(
            first,
            steps=self._steps,
            arena_bytes=self._arena_bytes,
            constants=tuple(constant for constant, _ in slots),
            packings=(),
            objects=tuple(spec.objects[n] for n, spec in enumerate(taken)),
            kernels=tuple(
                replace(spec.kernels[n], workspace_bytes=self._room[n])
                for n, spec in enumerate(taken)
            ),
            digests=(
                *(spec.digests[n] for n, spec in enumerate(taken)),
                *(digest for _, digest in slots),
            ),
        )
        verify_spec(spec)
        return replace(spec, entry=self._entry)

    @property
    def steps_of_kernels(self) -> dict[str, list[int]]:
        """The numbers of the steps that call each kernel."""
        found: dict[str, list[int]] = {key: [] for key in self.kernels}
        for number, step in enumerate(self._steps):
            if isinstance(step, CallStep):
                found[self.kernels[self._number[step.symbol]]].append(number)
        return found

    def clocked(self, model: Executable) -> Clocked:
        """A model of what is taken with a clock between its steps."""
        return model.clocked(self._clocked_entry)

    @cached_property
    def _entry(self) -> bytes:
        spec = self._uniform
        text = entry_of(spec, tiles=spec.target.matrix_tiles)
        return object_code(with_pool(text, spec.target.triple), spec.target)

    @cached_property
    def _clocked_entry(self) -> bytes:
        return object_code(clocked_entry_of(self._uniform), self._uniform.target)

    @property
    def _uniform(self) -> ExecutableSpec:
        return replace(self.builds[0], steps=self._steps, arena_bytes=self._arena_bytes)

    def _constants_of(self, taken: Sequence[ExecutableSpec]) -> list[tuple[RunStep, Location]]:
        """What each slot of the constants holds: a step, and where the build that it takes its
        kernel from has that constant."""
        found: list[tuple[RunStep, Location]] = []
        for place, step in enumerate(self.builds[0].steps):
            own = step
            if isinstance(step, CallStep):
                own = taken[self._number[step.symbol]].steps[place]
            found += [(step, location) for location in _places(own) if _is_constant(location)]
        return found

    def _laid_out(self) -> tuple[tuple[RunStep, ...], int]:
        """The steps of any taking, and the bytes of its arena.

        Each constant that a step reads has a slot of its own. A workspace is where the first build
        has it if that has room for the largest, else behind all values.
        """
        first = self.builds[0]
        behind, most, slots = aligned(first.arena_bytes), 0, 0
        steps: list[RunStep] = []
        for step in first.steps:
            count = sum(map(_is_constant, _places(step)))
            numbers = iter(range(slots, slots + count))
            slots += count
            if isinstance(step, CallStep):
                number = self._number[step.symbol]
                workspace, room = step.workspace, self._room[number]
                if room > first.kernels[number].workspace_bytes:
                    workspace, most = behind, max(most, room)
                buffers = tuple(_in_slot(place, numbers) for place in step.buffers)
                steps.append(replace(step, buffers=buffers, workspace=workspace))
            elif isinstance(step, CopyStep):
                steps.append(replace(step, source=_in_slot(step.source, numbers)))
        return tuple(steps), behind + aligned(most) if most else first.arena_bytes


def _in_slot(place: Location, numbers: Iterator[int]) -> Location:
    return replace(place, number=next(numbers)) if _is_constant(place) else place


def _is_constant(place: Location) -> bool:
    return place.place is Place.CONSTANT


def _places(step: RunStep) -> tuple[Location, ...]:
    """What a call or a copy reads and writes."""
    if isinstance(step, CallStep):
        return step.buffers
    assert isinstance(step, CopyStep), "no other step is exchangeable"
    return step.source, step.destination


def _problem(first: ExecutableSpec, other: ExecutableSpec) -> str:
    """Why kernels of two builds cannot be exchanged, or nothing."""
    if not first.signature.is_fixed:
        return "its sizes are dynamic"
    steps = list(zip(first.steps, other.steps, strict=False))
    if not all(isinstance(step, CallStep | CopyStep) for step in first.steps):
        return "it has loops or custom operators"
    symbols = [[part.symbol for part in spec.objects] for spec in (first, other)]
    keys = [[report.key for report in spec.kernels] for spec in (first, other)]
    if symbols[0] != symbols[1] or keys[0] != keys[1] or len(first.steps) != len(other.steps):
        return "its builds have other kernels"
    for one, another in steps:
        if isinstance(one, CallStep) != isinstance(another, CallStep):
            return "its builds have other steps"
        if isinstance(one, CallStep) and isinstance(another, CallStep):
            kinds = [[_is_constant(place) for place in step.buffers] for step in (one, another)]
            if one.symbol != another.symbol or kinds[0] != kinds[1]:
                return "its builds have other steps"
    return ""
