"""What is to be built, and what came of it."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.compiler.types.extents import Shapes
from tunefarm.configs.errors import SettingsError
from tunefarm.configs.settings import Settings, has_database
from tunefarm.tuner.building.report import (
    BuildReport,
    ProgramReport,
    require_share,
    require_verified,
)
from tunefarm.tuner.building.size_values import programs_of
from tunefarm.tuner.calibration.options import CHOSEN, PrecisionOptions
from tunefarm.tuner.from_settings import targets_of
from tunefarm.tuner.reports.report import format_share

if TYPE_CHECKING:
    from tunefarm.tuner.building.cache import KeptArtefact
    from tunefarm.tuner.records.unapplied import Unapplied

ARTEFACT = "artefact"
LIBRARY = "c-header+shared-library"
OBJECT = "object"
CODE_TEXTS = ("llvm", "asm")
FORMS = (ARTEFACT, *CODE_TEXTS, OBJECT, LIBRARY, "graph")
OF_SEVERAL = (ARTEFACT, OBJECT, LIBRARY)
"""The forms that may hold more than one program."""
SHIPPED = Path(__file__).parents[1] / "records" / "shipped"
"""The databases that come with the package, one for each target, by its key."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A model that is to be built to `output`, a file or, for LIBRARY, a folder, in one of FORMS.

    `shapes` fixes or bounds symbolic dimensions; where it has values, there is a program for each.
    `untuned` builds take no database, others `databases`, in the first of which the artifact is
    `listed`. `require_tuned` is the share of the estimated time that must run tuned. With
    `fallback` an artifact gets variants for CPUs that cannot run the first. `dump_after` names a
    stage of the compiler whose program is printed (see `tunefarm.compiler.pipeline`): then nothing
    is taken from caches. `precision` has the calibration data of int8, or asks for a point of what
    was chosen for the model. `compiler` is the C compiler for C forms, None: one for the target.
    Records that nobody has met on this CPU apply only if it may `accept_nominees`; with
    `require_verified` there must be none of a kernel. `parent` is the artifact that this one is to
    replace; None is the one at the output, if any. The file of a model that was given as bytes is
    `temporary`: where it lies says nothing.

    Raises SettingsError for what cannot be asked for.
    """

    model: str
    output: str
    settings: Settings
    shapes: Shapes = field(default_factory=dict)
    form: str = ARTEFACT
    untuned: bool = False
    fallback: bool = False
    require_tuned: float = 0.0
    dump_after: str | None = None
    listed: bool = True
    precision: PrecisionOptions = field(default_factory=PrecisionOptions)
    compiler: str | None = None
    accept_nominees: bool = False
    require_verified: bool = False
    parent: str | None = None
    temporary: bool = False

    def __post_init__(self) -> None:
        self.precision.check(self.settings.compile.numerics)
        if self.form not in FORMS:
            near = difflib.get_close_matches(self.form, FORMS, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise SettingsError(
                f"there is no form {self.form!r} to emit",
                hint=f"{meant}forms: {', '.join(FORMS)}",
            )
        if self.parent is not None and self.form != ARTEFACT:
            raise SettingsError(f"--parent is for artifacts, not for {self.form}")
        if self.fallback and self.form != ARTEFACT:
            raise SettingsError(f"--fallback is for artifacts, not for {self.form}")
        if self.is_several and self.form not in OF_SEVERAL:
            raise SettingsError(f"{self.form} holds one program: name one target, and one size")
        if self.is_several and self.dump_after is not None:
            raise SettingsError("--dump-after prints one program: name one target, and one size")
        if not 0.0 <= self.require_tuned <= 1.0:
            raise SettingsError(f"require_tuned = {self.require_tuned}: must be between 0 and 1")
        if self.dump_after is not None:
            from tunefarm.compiler.pipeline import STAGES
            from tunefarm.compiler.stages import check_stage

            check_stage(self.dump_after, STAGES)

    def check(self, report: BuildReport) -> None:
        """Raise TunefarmError for a build that is not what is required."""
        require_share(report, self.require_tuned)
        if self.require_verified:
            require_verified(report)

    @property
    def databases(self) -> tuple[str, ...]:
        """The databases that the build asks, in this order; none of an untuned one.

        Where nobody has named one, and the usual one is not there, those that come with the package
        are all, and without these the usual one, which is missed. Choices of precisions, and layers
        that are named, are not looked for without a database of the user's.
        """
        if self.untuned:
            return ()
        settings = self.settings
        asked = (settings.database.url, *settings.database.layers)
        files = [SHIPPED / f"{target.key}.db" for target in targets_of(settings)]
        shipped = [str(file) for file in files if settings.database.shipped and file.exists()]
        is_alone = not (has_database(settings) or settings.database.layers)
        if shipped and is_alone and settings.compile.numerics not in CHOSEN:
            return tuple(shipped)
        return (*asked, *shipped)

    @property
    def asks_only_shipped(self) -> bool:
        """Whether the only databases are those that come with the package."""
        return all(map(is_shipped, self.databases)) and not self.untuned

    @property
    def is_listed(self) -> bool:
        """Whether the build is listed in the database that it is made from."""
        return self.listed and not self.untuned and not self.asks_only_shipped

    @property
    def is_several(self) -> bool:
        """Whether more than one program is to be built, apart from fallbacks."""
        return len(self.settings.compile.targets) > 1 or len(programs_of(self.shapes)) > 1

    @property
    def name(self) -> str:
        """The model's, as artifacts and C have it."""
        return Path(self.model).stem

    def files(self) -> tuple[str, ...]:
        """The files that may be overwritten.

        Raises TunefarmError for a folder or a machine that cannot do, before the long work starts.
        """
        if self.form not in (LIBRARY, OBJECT):
            return (self.output,)
        from tunefarm.tuner.building.emit import check_c

        return check_c(self)


def is_shipped(database: str) -> bool:
    """Whether a database comes with the package."""
    return Path(database).parent == SHIPPED


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What was written where, how each kernel was built, and the command to type next.

    `model_hash` and `digest` name the model and the artifact, `kept` is the artifact in the cache
    if it is kept, `not_listed` says why it is not in its database or is ""; `parent` is the digest
    of the artifact that it replaces, or "". Other forms have none of these. `programs` are all
    where there are several; `report` is that of the first.
    """

    form: str
    output: str
    files: tuple[str, ...]
    report: BuildReport
    next_command: str
    model_hash: str = ""
    digest: str = ""
    kept: KeptArtefact | None = None
    not_listed: str = ""
    programs: tuple[ProgramReport, ...] = ()
    parent: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of the build, of all programs, each note once."""
        every = [self.report, *(program.report for program in self.programs)]
        return tuple(dict.fromkeys(note for report in every for note in report.notes))

    @property
    def unapplied(self) -> tuple[Unapplied, ...]:
        """The records that were left of the database, of all programs, and why."""
        every = [program.report for program in self.programs] or [self.report]
        return tuple(item for report in every for item in report.unapplied)

    @property
    def named(self) -> dict[str, Any]:
        """What was written where, and what it replaces, as JSON values."""
        parent = {"parent": self.parent} if self.parent else {}
        return {"output": self.output, "emit": self.form, "files": list(self.files), **parent}

    def to_json(self) -> dict[str, Any]:
        """What users see of it as JSON values."""
        several = [program.to_json() for program in self.programs]
        programs = {"programs": several} if several else {}
        return {**self.named, **self.report.to_json(), **programs}

    def lines(self) -> list[str]:
        """What to tell the user below the table of kernels."""
        runs = "of the estimated time runs tuned schedules"
        files = ", ".join(self.files)
        next_line = f"next: {self.next_command}"
        if not self.programs:
            share = f"{files}: {format_share(self.report.tuned_share)} {runs}"
            return [share, next_line]
        each = [f"for {p}: {format_share(p.report.tuned_share)} {runs}" for p in self.programs]
        return [f"{files}: {len(self.programs)} programs", *each, next_line]


def built_artefact(
    output: str,
    report: BuildReport,
    model_hash: str,
    digest: str,
    kept: KeptArtefact | None,
    not_listed: str = "",
) -> BuildResult:
    """An artifact that is at `output`, or is to be put there."""
    command = f"tune run {shlex.quote(output)} --repeat 20"
    return BuildResult(
        ARTEFACT, output, (output,), report, command, model_hash, digest, kept, not_listed
    )
