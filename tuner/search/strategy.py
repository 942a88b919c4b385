"""Strategy: what proposes a task's candidates; those there are, by the names of their files."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.configs.layers import refuse_unknown
from tunefarm.tuner.model.cost_model import Scores
from tunefarm.tuner.model.packed_space import Rows
from tunefarm.tuner.model.space_process import Describe
from tunefarm.tuner.search import strategies

Score: TypeAlias = Callable[[Rows], Scores]


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """What a strategy searches: a space, what the cost model thinks of its rows, and how.

    A share `exploration` of each batch is to be random, about `pool` candidates are scored for it;
    a strategy without a model, or with a way of its own to explore, needs neither. `features` are
    those of rows, for a strategy that learns by itself what the task's own candidates take.
    """

    space: ScheduleSpace
    score: Score
    seed: int
    exploration: float = 0.05
    pool: int = 512
    features: Describe | None = None


class Strategy(Protocol):
    """Proposes candidates of one space and learns what they take.

    The same problem and the same calls in the same order give the same proposals.
    """

    def propose(self, count: int) -> Iterable[Candidate]:
        """Up to `count` candidates to measure next, the best first; fewer at the end of the space.

        Each is asked for when the one before is `taken`; not all need be. None has been taken.
        """
        ...

    def take(self, candidate: Candidate) -> None:
        """The candidate is measured from now on, or has been: proposed here or named elsewhere."""
        ...

    def learn(self, candidate: Candidate, latency: float | None) -> None:
        """What a candidate that was taken takes, in seconds; again when that is known better.

        Infinity if it failed; None if it was never measured, through no fault of its own.
        """
        ...

    @property
    def headroom(self) -> float:
        """log2 of the speed-up still expected from what was not taken; infinity if unknown."""
        ...


def strategy_names() -> list[str]:
    """The names of all strategies."""
    return sorted(module.name for module in pkgutil.iter_modules(strategies.__path__))


def check_strategy(name: str) -> None:
    """Raises SettingsError, with the nearest name, if no strategy has this one."""
    refuse_unknown("search.sampler", name, strategy_names())


def make_strategy(name: str, problem: SearchProblem) -> Strategy:
    """The strategy of that name; SettingsError if there is none."""
    check_strategy(name)
    module = importlib.import_module(  # noqa: TID251 - a new strategy is its file alone
        f"{strategies.__name__}.{name}"
    )
    strategy: Strategy = module.make_strategy(problem)
    return strategy
