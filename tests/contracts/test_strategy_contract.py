"""What every strategy keeps to: whole candidates of the space, none twice, the same for a seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.tuner.synthetic import TARGET, latency, matmul_kernel, small_space, tile_space
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.tuner.model.cost_model import BoostedTrees, Scores
from tunefarm.tuner.model.features import FeatureExtractor
from tunefarm.tuner.model.lessons import Lesson, data_of
from tunefarm.tuner.model.packed_space import Rows
from tunefarm.tuner.search.strategy import SearchProblem, make_strategy, strategy_names
from tunefarm.tuner.search.tasks import TaskSearch

Answer = Callable[[ScheduleSpace, Candidate], float]


def failing(space: ScheduleSpace, candidate: Candidate) -> float:
    return math.inf


class Searched:
    """A search with its own cost model, replayed against an answer."""

    def __init__(
        self,
        name: str,
        space: ScheduleSpace,
        seed: int = 0,
        first: tuple[Candidate, ...] = (),
    ) -> None:
        self.space = space
        self.model = BoostedTrees(seed)
        self.extract = FeatureExtractor(space, matmul_kernel(), TARGET)
        problem = SearchProblem(
            space,
            lambda rows: self.model.predict(self.extract.of_rows(rows)),
            seed,
            features=self.extract.of_rows,
        )
        self.search = TaskSearch(space, make_strategy(name, problem), first=first)
        self.proposed: list[Candidate] = []
        self.latencies: list[float] = []

    def run(self, trials: int, answer: Answer, batch: int = 8) -> list[Candidate]:
        """Ask, answer, tell, retrain, until `trials` or the end of the space."""
        while len(self.proposed) < trials:
            asked = self.search.ask(min(batch, trials - len(self.proposed)))
            if not asked:
                break
            for candidate in asked:
                value = answer(self.space, candidate)
                self.search.tell(candidate, value)
                self.proposed.append(candidate)
                self.latencies.append(value)
            lessons = [Lesson.of("ok", value, 0.0, {}) for value in self.latencies]
            taught = [lesson for lesson in lessons if lesson is not None]
            self.model.fit(data_of(self.extract(self.proposed), taught, 0))
        return self.proposed


@pytest.fixture(params=strategy_names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_proposal_is_a_point_of_the_space(name: str) -> None:
    space = tile_space()
    for candidate in Searched(name, space).run(40, latency):
        assert space.candidate(space.number(candidate)) == candidate


def test_no_candidate_is_proposed_twice(name: str) -> None:
    proposed = Searched(name, tile_space()).run(60, latency)
    assert len(set(proposed)) == len(proposed) == 60


def test_the_same_seed_and_answers_give_the_same_proposals(name: str) -> None:
    first = Searched(name, tile_space(), seed=7).run(48, latency)
    again = Searched(name, tile_space(), seed=7).run(48, latency)
    assert first == again


def test_another_seed_gives_other_proposals(name: str) -> None:
    first = Searched(name, tile_space(), seed=1).run(24, latency)
    other = Searched(name, tile_space(), seed=2).run(24, latency)
    assert first != other


def test_the_first_candidates_are_proposed_first(name: str) -> None:
    space = tile_space()
    first = (space.default(), space.candidate(17), space.default())
    proposed = Searched(name, space, first=first).run(8, latency)
    assert proposed[:2] == [space.default(), space.candidate(17)]
    assert len(set(proposed)) == 8


def test_an_exhausted_space_ends_the_search(name: str) -> None:
    searched = Searched(name, small_space(5))
    proposed = searched.run(100, lambda space, candidate: 1.0 + candidate.positions[0])
    assert sorted(candidate.positions for candidate in proposed) == [(i,) for i in range(5)]
    assert searched.search.exhausted
    assert searched.search.ask(4) == []


def test_a_space_of_one_point_gives_that_point(name: str) -> None:
    space = small_space(1)
    assert Searched(name, space).run(10, lambda *_: 1.0) == [space.default()]


def test_a_task_in_which_everything_fails_goes_on_proposing(name: str) -> None:
    proposed = Searched(name, tile_space()).run(40, failing)
    assert len(set(proposed)) == 40


def test_candidates_named_later_are_proposed_next(name: str) -> None:
    space = tile_space()
    searched = Searched(name, space, first=(space.default(),))
    searched.run(1, latency)
    wanted = [space.candidate(17), space.default(), space.candidate(4711)]
    searched.search.propose_first(wanted)
    assert searched.run(6, latency)[1:3] == [space.candidate(17), space.candidate(4711)]


def test_candidates_measured_earlier_are_not_proposed(name: str) -> None:
    space = small_space(8)
    searched = Searched(name, space)
    searched.search.add(space.candidate(3), 1.0)
    searched.search.add(space.candidate(4), math.inf)
    proposed = searched.run(100, lambda *_: 2.0)
    assert {candidate.positions[0] for candidate in proposed} == {0, 1, 2, 5, 6, 7}


def test_a_candidate_added_between_batches_is_not_proposed(name: str) -> None:
    space = small_space(6)
    searched = Searched(name, space)
    searched.run(2, lambda *_: 1.0, batch=2)
    left = next(
        candidate
        for candidate in map(space.candidate, range(6))
        if candidate not in searched.proposed
    )
    searched.search.add(left, 1.0)
    assert left not in searched.run(100, lambda *_: 1.0)
    assert len(searched.proposed) == 5


def test_a_forgotten_proposal_is_not_repeated(name: str) -> None:
    search = Searched(name, small_space(3)).search
    (lost,) = search.ask(1)
    search.forget(lost)
    rest = search.ask(5)
    assert len(rest) == 2
    assert lost not in rest


def test_a_batch_larger_than_the_rest_of_the_space_is_cut(name: str) -> None:
    assert len(Searched(name, small_space(3)).search.ask(10)) == 3


def no_score(rows: Rows) -> Scores:
    raise AssertionError("never asked")


def test_an_unknown_strategy_is_refused_with_the_nearest() -> None:
    problem = SearchProblem(tile_space(), no_score, 0)
    with pytest.raises(SettingsError, match=r"search\.sampler = 'cost': unknown") as caught:
        make_strategy("cost", problem)
    assert caught.value.hint == "did you mean cost_model?"


@pytest.mark.nightly
def test_the_cost_model_finds_good_candidates_in_fewer_trials_than_chance() -> None:
    space = tile_space()
    best = min(latency(space, space.candidate(i)) for i in range(13720, 20580))

    def trials_until_good(name: str, seed: int) -> int:
        latencies = Searched(name, space, seed)
        latencies.run(120, latency)
        good = (i for i, value in enumerate(latencies.latencies) if value <= 1.05 * best)
        return next(good, 120)

    ours = sorted(trials_until_good("cost_model", seed) for seed in range(3))
    chance = sorted(trials_until_good("random", seed) for seed in range(3))
    assert 2 * ours[1] <= chance[1]
