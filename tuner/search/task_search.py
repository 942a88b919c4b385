"""TaskSearch: the search of one task, with any strategy."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.tuner.search.strategy import Strategy


class TaskSearch:
    """The search of one task: candidates are asked for in batches and their latencies told.

    No candidate is proposed twice, nor one that was added as known. The same strategy, seeds and
    answers give the same proposals.
    """

    def __init__(
        self, space: ScheduleSpace, strategy: Strategy, *, first: Iterable[Candidate] = ()
    ) -> None:
        """`first` are proposed before any of the strategy's own (the default, known good ones)."""
        self._space = space
        self._strategy = strategy
        self._known: set[Candidate] = set()
        self._first = list(dict.fromkeys(first))

    @property
    def exhausted(self) -> bool:
        """Whether every candidate of the space has been proposed."""
        return len(self._known) >= self._space.size

    @property
    def headroom(self) -> float:
        """log2 of the speed-up that the strategy still thinks possible; infinity if unknown."""
        return self._strategy.headroom

    def propose_first(self, candidates: Iterable[Candidate]) -> None:
        """Propose these before any of the strategy's own, after those that already wait."""
        self._first = list(dict.fromkeys((*self._first, *candidates)))

    def add(self, candidate: Candidate, latency: float) -> None:
        """A result from elsewhere (an earlier run); infinity for a failure."""
        if candidate not in self._known:
            self._take(candidate)
        self.tell(candidate, latency)

    def ask(self, count: int) -> list[Candidate]:
        """Up to `count` new candidates; fewer, or none, when the space is exhausted."""
        asked: list[Candidate] = []
        while self._first and len(asked) < count:
            candidate = self._first.pop(0)
            if candidate not in self._known:
                asked.append(self._take(candidate))
        proposals = islice(self._strategy.propose(count), count - len(asked))
        asked += map(self._take, proposals)
        return asked

    def tell(self, candidate: Candidate, latency: float) -> None:
        """The latency of a candidate in seconds, again when it is known better; infinity for a
        failure."""
        self._strategy.learn(candidate, latency)

    def forget(self, candidate: Candidate) -> None:
        """A candidate that was never measured, through no fault of its own."""
        self._strategy.learn(candidate, None)

    def _take(self, candidate: Candidate) -> Candidate:
        self._known.add(candidate)
        self._strategy.take(candidate)
        return candidate
