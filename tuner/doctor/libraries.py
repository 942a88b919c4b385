"""Whether the libraries that the package asks for are here, in these versions, and can be
imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version

from tunefarm.measure.sandbox.isolated import ask_isolated
from tunefarm.tuner.doctor.checkup import Finding, Question, ok, problem, warning

DISTRIBUTION = "tunefarm"
_IMPORT_SECONDS = 60.0
_AT_ONCE = 2  # libraries
_FOR_DEVELOPERS = ("test", "docs")  # extras that are not looked at
NOT_MISSED = ("bench", "postgresql")
"""Extras of the package whose libraries nobody misses who does not know."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library that is asked for: its version here ("" if it is not there), and the bound."""

    name: str
    bound: str
    version: str
    extra: str = ""
    module: str = ""
    rivals: tuple[str, ...] = ()
    """Other installed distributions of the same module: files of one replace those of the other."""

    @property
    def fits(self) -> bool:
        """Whether the version is within the bound."""
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(self.bound).contains(self.version, prereleases=True)


def libraries(
    requirements: Iterable[str],
    versions: Mapping[str, str],
    modules: Mapping[str, Sequence[str]],
) -> list[Library]:
    """What a package's metadata asks for, with the `versions` that are installed; of a library
    that several extras have, the first. What developers need is left out.

    `modules` has the distributions of each top-level module that is installed.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    owners = {
        module: {canonicalize_name(name) for name in names} for module, names in modules.items()
    }

    found: dict[str, Library] = {}
    for text in requirements:
        requirement = Requirement(text)
        marker = str(requirement.marker or "")
        extra = marker.partition("extra ==")[2].strip().strip("\"'") if marker else ""
        if extra in _FOR_DEVELOPERS:
            continue
        version = versions.get(requirement.name, "")
        own = canonicalize_name(requirement.name)
        usual = requirement.name.replace("-", "_")
        here = [module for module, names in owners.items() if own in names]
        here.sort(key=lambda module: (module.startswith("_"), module))  # _re2 is within re2
        module = usual if usual in here or not here else here[0]
        library = Library(
            requirement.name,
            str(requirement.specifier),
            version,
            extra,
            module,
            tuple(sorted(owners.get(module, {own}) - {own})),
        )
        if requirement.name not in found or not extra:
            found[requirement.name] = library
    return list(found.values())


def check_libraries(question: Question) -> list[Finding]:
    """Whether what the package asks for is there, in these versions, and can be imported."""
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        text = "tunefarm is not installed: which versions it needs is not known"
        return [warning("libraries", text, "pip install tunefarm, or pip install . in its sources")]
    versions = {}
    for library in libraries(requirements, {}, {}):
        try:
            versions[library.name] = version(library.name)
        except PackageNotFoundError:
            continue
    modules = packages_distributions()
    return judge_libraries(libraries(requirements, versions, modules), import_failures)


Failures = Callable[[Sequence[str]], Mapping[str, str]]
"""Why modules cannot be imported, by name; those that can be are left out."""


def judge_libraries(asked: Iterable[Library], failures: Failures) -> list[Finding]:
    """What is missing, broken or older than it may be, a line each; one line for all the others."""
    needed = [library for library in asked if library.version or library.extra not in NOT_MISSED]
    broken = failures([item.module for item in needed if item.version])
    found = [_judged(library, broken.get(library.module, "")) for library in needed]
    wrong = [finding for finding in found if finding is not None]
    right = {
        library.name: library.version
        for library, finding in zip(needed, found, strict=True)
        if finding is None
    }
    description = ", ".join(f"{name} {version}" for name, version in sorted(right.items()))
    return [*wrong, *([ok("libraries", description, versions=right)] if right else [])]


def _judged(library: Library, failure: str) -> Finding | None:
    """What is wrong with a library; None if nothing is."""
    name, asked = library.name, f"{library.name}{library.bound}"
    install = f"pip install '{asked}'"
    if not library.version and library.extra:
        what = f"{name} is not installed (extra {library.extra})"
        return warning("libraries", what, f"pip install 'tunefarm[{library.extra}]'", library=name)
    if not library.version:
        return problem("libraries", f"{name} is not installed", install, library=name)
    if failure:
        what = f"{name} {library.version} cannot be imported: {failure}"
        return problem("libraries", what, f"pip install --force-reinstall '{asked}'", library=name)
    if library.version and library.rivals:
        both = " ".join([*library.rivals, name])
        what = f"{' and '.join(library.rivals)} is installed as well as {name}: each replaces files"
        what += f" of the other's module {library.module}"
        advice = f"pip uninstall --yes {both} && {install}"
        return warning("libraries", what, advice, library=name)
    if not library.fits:
        what = f"{name} {library.version} is not {library.bound}, which was tested"
        return warning("libraries", what, install, library=name)
    return None


def import_failures(names: Sequence[str]) -> dict[str, str]:
    """See `Failures`; each module is imported in a process of its own."""

    def failure(module: str) -> str:
        return ask_isolated("tunefarm.tuner.doctor.can_import", [module], _IMPORT_SECONDS).failure

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = zip(names, pool.map(failure, names), strict=True)
        return {name: why for name, why in found if why}
