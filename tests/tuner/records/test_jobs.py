"""Jobs are found by the start of their ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefarm.configs.errors import DatabaseError
from tunefarm.db.records import JobRecord
from tunefarm.db.store import Store
from tunefarm.tuner.records.jobs import find_job, short_id

JOB = JobRecord("abcdef0123456789", "m.onnx", "h", {}, "finished", 1.0, 2.0, 2.0, {})


def test_jobs_are_found_by_the_start_of_their_ids(store: Store) -> None:
    store.add([JOB, replace(JOB, id="abcdef0199999999", started=5.0), replace(JOB, id="bb")])
    assert find_job(store, "abcdef012").id == JOB.id
    assert find_job(store, "last").id == "bb"  # the last number, not the last moment
    for name, told in (("abc", "2 jobs begin with 'abc'"), ("x", "no job begins"), ("", "no job")):
        with pytest.raises(DatabaseError, match=told):
            find_job(store, name)


def test_without_jobs_the_error_says_what_begins_one(store: Store) -> None:
    with pytest.raises(DatabaseError, match="tune MODEL begins one"):
        find_job(store, "last")


def test_short_ids_tell_jobs_apart() -> None:
    other = replace(JOB, id="abcdef0199999999")
    assert short_id(JOB) == short_id(JOB, [JOB]) == "abcdef01"
    assert short_id(JOB, [JOB, other]) == "abcdef012345"
