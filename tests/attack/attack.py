"""What an attack is: it tries to make the project fail, one seeded attempt at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended.

    `label` is a word or two by which attempts are counted ("refused", "same as onnxruntime",
    "crash"). An attempt that `broke` something is a finding, and `detail` says what was seen:
    a traceback, two values that differ, a signal's name.
    """

    label: str
    broke: bool = False
    detail: str = ""


class Attack(ABC):
    """One way of attacking. An attempt depends on its seed alone, so that it can be repeated."""

    name: ClassVar[str]
    share: ClassVar[float] = 1.0
    """Of the time that a campaign has, relative to the other attacks."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the attack's own, empty at first; what attempts leave there is removed."""
        self.folder = folder

    @abstractmethod
    def attempt(self, seed: int) -> Outcome:
        """Attack once. An exception that escapes counts as a finding, with its traceback."""

    def minimise(self, seed: int, outcome: Outcome) -> str:
        """A smaller input that breaks the same, as text; "" where there is none smaller."""
        return ""

    def close(self) -> None:  # noqa: B027 - most have started nothing
        """End what the attack started."""
