"""All checks, each in a process of its own with a time limit, and what it means if one breaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from tunefarm.configs.errors import SettingsError
from tunefarm.measure.sandbox.isolated import Answer, ask_isolated

if TYPE_CHECKING:
    from tunefarm.configs.settings import Settings

# What the doctor is asked, and what a check finds.


class Grade(StrEnum):
    """How a matter stands; a PROBLEM keeps something from working."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked at: a configuration and a database, None for the usual ones; for how many
    seconds noise is measured."""

    config: str | None = None
    db: str | None = None
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was found of a matter, what to do about it ("" if nothing), and
    its figures as JSON values."""

    name: str
    grade: Grade
    text: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Finding:
        """The inverse of `to_json`; KeyError, TypeError or ValueError on other JSON."""
        name, text, advice = (str(value[key]) for key in ("name", "text", "advice"))
        return Finding(name, Grade(value["grade"]), text, advice, dict(value["facts"]))

    def lines(self) -> list[str]:
        """The finding for people: its grade in a column of its own, the advice below."""
        description = f"{self.grade:<8} {self.name}: {self.text}"
        return [description, f"{'':8} -> {self.advice}"] if self.advice else [description]


def worst(findings: Iterable[Finding]) -> Grade:
    """The worst grade among the findings."""
    order = list(Grade)
    return max((finding.grade for finding in findings), key=order.index, default=Grade.OK)


def summary(findings: Iterable[Finding]) -> str:
    """How many findings are of each grade, in a line."""
    grades = [finding.grade for finding in findings]
    problems, warnings = grades.count(Grade.PROBLEM), grades.count(Grade.WARNING)
    if not problems and not warnings:
        return "all is well"
    counted = ((problems, "problem"), (warnings, "warning"))
    parts = [f"{count} {name}{'s' if count > 1 else ''}" for count, name in counted if count]
    return " and ".join(parts)


def ok(name: str, text: str, **facts: Any) -> Finding:
    """A matter that is as it should be."""
    return Finding(name, Grade.OK, text, facts=facts)


def warning(name: str, text: str, advice: str, **facts: Any) -> Finding:
    """A matter that makes something slower, or keeps something from working that few need."""
    return Finding(name, Grade.WARNING, text, advice, facts)


def problem(name: str, text: str, advice: str, **facts: Any) -> Finding:
    """A matter that keeps something from working."""
    return Finding(name, Grade.PROBLEM, text, advice, facts)


def settings_of(question: Question) -> Settings:
    """The settings that a command with these options has. The check of the settings says what is
    wrong with them; the others look at the defaults then."""
    from tunefarm.configs.settings import Settings, load_settings

    try:
        return load_settings(question.config, {"database.url": question.db})
    except SettingsError:
        return Settings()


CHILD = "tunefarm.tuner.doctor.child"
AT_ONCE = 2  # checks that run at the same time; the machine may have few cores
_MORE = 60.0  # seconds of a check that measures, next to those that it is to take

Ask = Callable[[str, Question, float], Answer]
"""Asks a check by its name, for so many seconds."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check by its name, how many seconds it may take, and how bad it is if it does not end.

    `measures`: nothing else runs with it, and it takes the seconds that were asked for as well.
    """

    name: str
    seconds: float = 60.0
    broken: Grade = Grade.PROBLEM
    advice: str = "the same check by itself tells more: python -m tunefarm.tuner.doctor.child"
    measures: bool = False


CHECKS = (
    Check("settings"),
    Check("program", broken=Grade.WARNING),
    Check("libraries", 180.0),
    Check("cpu", advice="pip install --force-reinstall llvmlite"),
    Check("target"),
    Check("cores"),
    Check("governor", broken=Grade.WARNING),
    Check("memory", broken=Grade.WARNING),
    Check("temporary files"),
    Check("database", 120.0),
    Check("compile cache", broken=Grade.WARNING),
    Check("C compiler", broken=Grade.WARNING),
    Check("Ray", 180.0, advice="tune --runner local measures on this machine without Ray"),
    Check("noise", advice="tune --debug --runner local shows why", measures=True),
)


def checkup(question: Question, ask: Ask | None = None) -> Iterator[Finding]:
    """What all checks find, in their order, as they end. Raises nothing, whatever is broken.

    Without seconds to measure in, nothing is measured.
    """
    ask = ask_child if ask is None else ask
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tunefarm-doctor") as pool:
        others = [check for check in CHECKS if not check.measures]
        answers = [pool.submit(found_by, check, question, ask) for check in others]
        for answer in answers:
            yield from answer.result()
    for check in CHECKS:
        if check.measures and question.seconds > 0:
            yield from found_by(check, question, ask)


def ask_child(name: str, question: Question, seconds: float) -> Answer:
    """Ask a check in a process of its own."""
    return ask_isolated(CHILD, [name, json.dumps(asdict(question))], seconds)


def found_by(check: Check, question: Question, ask: Ask) -> list[Finding]:
    """What a check finds; that it broke, if it did."""
    limit = check.seconds + (question.seconds + _MORE if check.measures else 0.0)
    answer = ask(check.name, question, limit)
    broken = partial(Finding, check.name, check.broken, advice=check.advice)
    if answer.failure:
        return [broken(f"the check broke off: {answer.failure}")]
    try:
        findings = [Finding.from_json(value) for value in json.loads(answer.output)]
    except (ValueError, KeyError, TypeError) as error:
        return [broken(f"the check's answer cannot be read: {error!r}")]
    return findings or [broken("the check found nothing to say")]


def report_json(findings: Iterable[Finding]) -> Mapping[str, object]:
    """All findings as JSON values, and how many are of each grade."""
    found = list(findings)
    counts = {grade.value: sum(item.grade is grade for item in found) for grade in Grade}
    return {"grades": counts, "findings": [finding.to_json() for finding in found]}
