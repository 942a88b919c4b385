"""What the doctor is asked, and what a check finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tunefarm.configs.errors import SettingsError

if TYPE_CHECKING:
    from tunefarm.configs.settings import Settings


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
