"""The parents of a build: the artifacts that it replaces, which its manifest names.

tune build M -o F              F is new, or of another model: no parents
tune build M -o F              F was another build of M: its digest, and its own parents
tune build M -o F              F is the same build, or one of its parents was: that one again,
                               with its own parents, the same to the byte
tune build M -o G --parent F   the digest of F, and its parents
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.runtime.artefact.file_header import MOST_PARENTS, Lineage, lineage_of
from tunefarm.tuner.building.request import ARTEFACT, BuildRequest, BuildResult


@dataclass(frozen=True, slots=True)
class ParentChoice:
    """The artifact that a build replaces; None for none. A `given` one is no former build at the
    output."""

    former: Lineage | None = None
    given: bool = False

    @staticmethod
    def of(request: BuildRequest) -> ParentChoice:
        """What is known before anything is built. Raises `ArtefactError` for a parent that is
        given and is none."""
        if request.form != ARTEFACT:
            return ParentChoice()
        if request.parent is not None:
            return ParentChoice(lineage_of(request.parent), given=True)
        try:
            return ParentChoice(lineage_of(request.output))
        except ArtefactError:  # a new file, or one that is replaced whatever it is
            return ParentChoice()

    def name_in(self, result: BuildResult) -> BuildResult:
        """The result, with its parents in the file. Raises `ArtefactError` if it cannot be
        written."""
        if not result.digest or self.former is None or self.is_same(result):
            return result
        built = lineage_of(result.output)
        parents = self._parents(self.former, built)
        if not parents:
            return result
        from tunefarm.compiler.runtime.artefact.artefact import set_parents  # with NumPy

        set_parents(result.output, parents)
        return replace(result, digest=built.digest_with(parents), parent=parents[0])

    def is_same(self, result: BuildResult) -> bool:
        """Whether the result is the artifact that was at the output."""
        return self.former is not None and not self.given and self.former.digest == result.digest

    def _parents(self, former: Lineage, built: Lineage) -> tuple[str, ...]:
        if former.model != built.model and not self.given:
            return ()
        line = (former.digest, *former.parents)
        for number, digest in enumerate(() if self.given else line):
            if built.digest_with(line[number + 1 :]) == digest:
                return line[number + 1 :]
        return line[:MOST_PARENTS]
