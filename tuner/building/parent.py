"""The parent of a build: the artifact that it replaces, which its manifest names.

tune build M -o F              F is new: no parent
tune build M -o F              F was another build: its digest
tune build M -o F              F is the same build but for its parent: that stays, and the bytes
tune build M -o G --parent F   the digest of F
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.runtime.artefact.file_header import digest_of, lineage_of
from tunefarm.tuner.building.request import ARTEFACT, BuildRequest, BuildResult


@dataclass(frozen=True, slots=True)
class ParentChoice:
    """The digest of the artifact that a build replaces, "" for none.

    Where the build turns out to be `same_as` that, as it is without a parent, its own parent stays,
    which is `former`.
    """

    digest: str = ""
    same_as: str = ""
    former: str = ""

    @staticmethod
    def of(request: BuildRequest) -> ParentChoice:
        """What is known before anything is built. Raises `ArtefactError` for a parent that is
        given and is none."""
        if request.form != ARTEFACT:
            return ParentChoice()
        if request.parent is not None:
            return ParentChoice(digest_of(request.parent))
        try:
            found = lineage_of(request.output)
        except ArtefactError:  # a new file, or one that is replaced whatever it is
            return ParentChoice()
        return ParentChoice(found.digest, found.built, found.parent)

    def name_in(self, result: BuildResult) -> BuildResult:
        """The result, with its parent in the file. Raises `ArtefactError` if it cannot be
        written."""
        if not result.digest:
            return result
        parent = self.former if result.digest == self.same_as else self.digest
        if not parent:
            return result
        from tunefarm.compiler.runtime.artefact.artefact import set_parent  # with NumPy

        set_parent(result.output, parent)
        return replace(result, digest=digest_of(result.output), parent=parent)
