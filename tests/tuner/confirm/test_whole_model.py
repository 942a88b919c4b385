"""What a job keeps: what finalists settle, and of claims what the whole model confirms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.setting import Setting
from tests.tuner.synthetic import matmul_kernel, small_space
from tunefarm.compiler.target import host_target
from tunefarm.db import queries
from tunefarm.db.records import BestRecord
from tunefarm.db.store import Store
from tunefarm.tuner.confirm.kernel_choices import KernelChoices, defaults_for_claims
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.confirm.whole_model import Confirmed, ConfirmModel, unmeasured
from tunefarm.tuner.records.trials import record_to_apply
from tunefarm.tuner.search.budget import Limits

UNTUNED, CLAIMS = "untuned", "claims"


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    """A kernel of which the search claims a faster schedule, and nobody has met."""
    made = Setting(tmp_path / "tuning.db")
    made.run(Limits(), (matmul_kernel(), small_space(30), 1))
    yield made
    made.store.close()


@dataclass
class Builds:
    """Builds whose code is the name of what is in them."""

    store: Store

    def choose(
        self, _: object, *, only_confirmed: bool = False, settled: Iterable[BestRecord] = ()
    ) -> str:
        return UNTUNED if only_confirmed or tuple(settled) else CLAIMS

    def compile(self, _: object, choose: str) -> tuple[str, str]:
        return choose, f"report of {choose}"


def confirmed(setting: Setting, ratio: float) -> Confirmed:
    """What is kept where the model with the claims takes so many times as long as untuned."""

    def compare(specs: Sequence[Any]) -> ModelLatency:
        found = ratio if specs[1] == CLAIMS else 1.0
        return ModelLatency(1.0, found, 0.0, 0.0, found, 0.99 * found, 1.01 * found)

    builds: Any = Builds(setting.store)
    untuned: Any = UNTUNED
    left = defaults_for_claims(setting.store, setting.made, (), setting.job)
    confirming = ConfirmModel(
        builds, host_target(), untuned, (), compare, print, None, defaults=left
    )
    return confirming.run()


def report_of(found: Confirmed) -> Any:
    return found.report


@pytest.mark.parametrize("ratio", [1.12, 1.0, 0.995])
def test_claims_that_the_model_does_not_confirm_give_way(setting: Setting, ratio: float) -> None:
    task = setting.made[0]
    applied = record_to_apply(setting.store, task.key)
    assert applied is not None
    assert applied[0].schedule_hash != task.default.hash
    found = confirmed(setting, ratio)
    assert report_of(found) == f"report of {UNTUNED}"
    setting.store.add(found.bests)
    after = record_to_apply(setting.store, task.key)
    assert after is not None
    assert after[0].schedule_hash == task.default.hash
    (record,) = found.bests
    assert record.met == (task.default.hash,), "the finalists are still to meet"


def test_claims_that_make_the_model_faster_stay(setting: Setting) -> None:
    found = confirmed(setting, 0.9)
    assert report_of(found) == f"report of {CLAIMS}" and not found.bests


def test_claims_give_way_where_no_model_is_measured(setting: Setting) -> None:
    builds: Any = Builds(setting.store)
    left = defaults_for_claims(setting.store, setting.made, (), setting.job)
    found = unmeasured(builds, host_target(), (), left, "the cores are busy")
    assert report_of(found) == f"report of {UNTUNED}" and found.bests == left


def test_what_was_settled_is_no_claim(setting: Setting) -> None:
    task = setting.made[0]
    choices = KernelChoices(setting.store, [task], (), job=setting.job)
    setting.store.add(choices.untuned())
    assert queries.best(setting.store, task.key) is not None
    assert not defaults_for_claims(setting.store, [task], (), setting.job)
