"""Exported studies, read by Optuna itself."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tests.db.examples import failed, paired, trial
from tunefarm.configs.errors import DatabaseError
from tunefarm.db.store import Store
from tunefarm.tuner.records.optuna_study import export_studies

pytestmark = pytest.mark.usefixtures("populated")


def read(path: Path) -> optuna.Study:
    return optuna.load_study(study_name=None, storage=f"sqlite:///{path}")


def test_trials_are_read_with_choices_latencies_and_states(store: Store, tmp_path: Path) -> None:
    store.add([trial(1, 2e-3), paired(2, 1), failed(3), failed(4, "scattered")])
    path = tmp_path / "study.db"
    assert export_studies(store, path) == (1, 4)
    study = read(path)
    assert study.study_name.startswith("conv_relu 89abcdef01234567 on x86-64-v3/8")
    assert study.user_attrs["threads"] == 1
    states = [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED]
    assert [one.state for one in study.trials] == states
    assert study.best_trial.value == 2e-3
    best = {"sketch": "direct", "tile[0]": 1, "tile[1]": 4, "order": "nhwc"}
    assert study.best_trial.params == best
    crashed = study.trials[2].user_attrs
    assert crashed["status"] == "crashed" and crashed["error"] == "signal 11"
    assert study.trials[0].duration is not None
    assert study.trials[0].duration.total_seconds() == pytest.approx(0.875)


def test_choices_of_several_types_stand_beside_each_other(store: Store, tmp_path: Path) -> None:
    kinds = [{"a": 1, "n": 8}, {"a": True, "n": 4}, {"a": None, "n": 16}, {"a": "1"}]
    store.add([trial(number, choices=choices) for number, choices in enumerate(kinds)])
    export_studies(store, tmp_path / "study.db")
    params = [one.params for one in read(tmp_path / "study.db").trials]
    assert [one["a"] for one in params] == ["1", "true", '"null"', '"1"']
    assert [one.get("n") for one in params] == [8, 4, 16, None]


def test_a_parameter_of_very_many_values_becomes_an_attribute(store: Store, tmp_path: Path) -> None:
    store.add([trial(number, choices={"name": f"n{number}"}) for number in range(70)])
    export_studies(store, tmp_path / "study.db")
    study = read(tmp_path / "study.db")
    assert study.trials[69].params == {"sketch": "direct"}
    assert study.trials[69].user_attrs["name"] == "n69"


def test_an_empty_database_gives_no_studies(store: Store, tmp_path: Path) -> None:
    assert export_studies(store, tmp_path / "study.db") == (0, 0)
    assert optuna.study.get_all_study_names(f"sqlite:///{tmp_path / 'study.db'}") == []


def test_a_file_that_is_there_is_left_alone(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_text("mine")
    with pytest.raises(DatabaseError, match="exists already"):
        export_studies(store, path)
    assert path.read_text() == "mine"
    with pytest.raises(DatabaseError, match="cannot write"):
        export_studies(store, tmp_path / "gone" / "study.db")
    assert {one.name for one in tmp_path.iterdir()} == {"study.db", "tuning.db"}
