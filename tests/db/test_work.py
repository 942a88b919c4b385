"""What is asked of the process that is at work on a job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.db.examples import KEY, populate
from tunefarm.configs.errors import DatabaseError
from tunefarm.db.records import JobTask
from tunefarm.db.store import Store
from tunefarm.db.work import ask, asked


@pytest.fixture(params=["file", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Of both kinds."""
    is_file = request.param == "file"
    url = tmp_path / "tuning.db" if is_file else request.getfixturevalue("postgresql_url")
    with Store.open(url) as store:
        yield store


@pytest.fixture
def job(store: Store) -> str:
    populate(store)
    return store.start_job("resnet18", "abc", {}, [JobTask(KEY, 1)]).id


def test_what_is_asked_is_heard_with_who_asks(store: Store, job: str) -> None:
    assert asked(store, job) is None
    assert ask(store, job, "stop")
    assert ask(store, job, "stop")  # again, before it was heard
    found = asked(store, job)
    assert found is not None
    what, by = found
    assert what == "stop"
    assert by.startswith(f"process {os.getpid()} on ")


def test_nobody_is_asked_of_a_job_that_has_ended(store: Store, job: str) -> None:
    assert ask(store, job, "stop")
    store.finish_job(job, "interrupted")
    assert asked(store, job) is None
    assert not ask(store, job, "stop")


def test_unknown_job_is_refused(store: Store) -> None:
    with pytest.raises(DatabaseError, match="job 'nothing' is not in the database"):
        ask(store, "nothing", "stop")
