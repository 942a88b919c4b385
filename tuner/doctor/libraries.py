"""Whether the libraries that the package asks for are here and can be imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version

from tunefarm.measure.sandbox.isolated import ask_isolated
from tunefarm.tuner.doctor.checkup import Finding, Question, ok, problem, warning

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
