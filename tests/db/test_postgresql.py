"""A database of a PostgreSQL server: who gets in, who may write, and what a lost server costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, event, func, insert, select
from sqlalchemy.engine import make_url

from tests.db.examples import KEY, populate, trial
from tests.db.postgresql import PASSWORD, USER, Server, running_server
from tunefarm.configs.errors import DatabaseError, DatabaseUnavailableError
from tunefarm.db import queries, schema
from tunefarm.db.check import check
from tunefarm.db.store import Store


@pytest.fixture
def store(postgresql_url: str) -> Iterator[Store]:
    with Store.open(postgresql_url) as store:
        populate(store)
        store.add([trial(1), trial(2)])
        yield store


def refused(url: str, **options: Any) -> str:
    """What the one line says with which opening fails; the password is not in it."""
    with pytest.raises(DatabaseError) as caught:
        Store.open(url, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert not any(part in text for part in ("sesame", "1@2", "1%402"))
    return text


def test_password_is_not_in_the_name(store: Store, postgresql_url: str) -> None:
    url = make_url(postgresql_url)
    assert url.password == PASSWORD
    assert store.name == f"postgresql://{USER}:***@127.0.0.1:{url.port}/{url.database}"


def test_driver_may_be_named_and_options_are_not_printed(postgresql_url: str) -> None:
    url = make_url(postgresql_url)
    options = {"password": PASSWORD, "application_name": "test"}
    location = URL.create(
        "postgresql+psycopg", USER, None, url.host, url.port, url.database, options
    )
    with Store.open(location.render_as_string()) as store:
        assert store.name == f"postgresql://{USER}@127.0.0.1:{url.port}/{url.database}"
        with store.reading() as session:
            assert session.scalar(func.current_setting("application_name")) == "test"


def test_wrong_password_is_refused(postgresql: Server) -> None:
    text = refused(postgresql.url("postgres", password="open sesame"))
    assert "password authentication failed" in text


def test_unknown_database_is_refused(postgresql: Server) -> None:
    assert 'database "nowhere" does not exist' in refused(postgresql.url("nowhere"))


def test_missing_server_is_refused() -> None:
    text = refused("postgresql://tuner:open%20sesame@127.0.0.1:1/records")
    assert "Connection refused" in text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tuner:open sesame@1@host/records",
        "postgresql://tuner:open sesame@host:port/records",
        "postgresql://tuner:open sesame\0@127.0.0.1:1/records",
    ],
)
def test_url_that_cannot_be_read_is_refused(url: str) -> None:
    assert refused(url).startswith("this is not a database URL (")


@pytest.mark.parametrize("option", ["port=x", "plugin=x", "nonsense=x", "sslmode=x"])
def test_wrong_option_is_refused(option: str) -> None:
    text = refused(f"postgresql://tuner:open%20sesame@127.0.0.1:1/records?{option}")
    assert "option" in text or "sslmode" in text


def test_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    text = refused("postgresql://tuner:open%20sesame@127.0.0.1:1/records")
    assert text.endswith("(pip install 'tunefarm[postgresql]')")


def test_database_that_cannot_hold_every_text_is_refused(postgresql: Server) -> None:
    with postgresql.database(encoding="SQL_ASCII") as name:
        assert "encoding SQL_ASCII, not UTF8 (make one with: " in refused(postgresql.url(name))


def test_empty_database_is_filled_only_by_a_writer(postgresql_url: str) -> None:
    for read_only in (False, True):
        assert "is empty" in refused(postgresql_url, create=read_only, read_only=read_only)
    Store.open(postgresql_url).close()
    with Store.open(postgresql_url, create=False, read_only=True) as store:
        assert queries.count_trials(store) == {}


def test_database_without_the_right_to_make_tables_is_refused(
    postgresql: Server, postgresql_url: str
) -> None:
    url = make_url(postgresql_url)
    postgresql.execute(f"CREATE ROLE guest_{url.database} LOGIN PASSWORD 'open sesame'")
    guest = url.set(username=f"guest_{url.database}", password="open sesame")
    text = refused(guest.render_as_string(hide_password=False))
    assert "permission denied for schema public" in text


def test_user_who_may_only_select_can_read(postgresql: Server, postgresql_url: str) -> None:
    url = make_url(postgresql_url)
    assert url.database is not None
    name = f"reader_{url.database}"
    postgresql.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'open sesame'")
    with Store.open(postgresql_url) as store:
        populate(store)
        store.add([trial(1)])
        postgresql.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}", url.database)
        reader = url.set(username=name, password="open sesame")
        location = reader.render_as_string(hide_password=False)
        with Store.open(location, create=False, read_only=True) as seen:
            assert queries.count_trials(seen) == {"ok": 1}
            assert seen.is_same(store)
        with Store.open(location) as seen, pytest.raises(DatabaseError, match="permission denied"):
            seen.add([trial(2)])


def test_reading_only_cannot_write(store: Store, postgresql_url: str) -> None:
    with Store.open(postgresql_url, read_only=True) as reader:
        with pytest.raises(DatabaseError, match="is open for reading only"):
            reader.add([trial(3)])
        values = {"key": "k", "description": {}}
        with pytest.raises(DatabaseError, match="read-only transaction"), reader.reading() as read:
            read.execute(insert(schema.Target).values(values))
        with reader.translating(), reader.writer.begin() as connection:
            assert connection.exec_driver_sql("SHOW transaction_read_only").scalar() == "on"
    assert set(queries.targets(store)) == {KEY.target}


def test_reader_sees_one_state_while_others_write(store: Store, postgresql_url: str) -> None:
    counted = select(func.count()).select_from(schema.Trial)
    with Store.open(postgresql_url) as other, store.reading() as session:
        assert session.scalar(counted) == 2
        other.add([trial(3)])
        assert session.scalar(counted) == 2
    assert queries.count_trials(store) == {"ok": 3}


def test_one_database_is_known_by_every_url(store: Store, postgresql_url: str) -> None:
    local = make_url(postgresql_url).set(host="localhost").render_as_string(hide_password=False)
    with Store.open(local) as same, Store.open(":memory:") as other:
        assert same.is_same(store)
        assert not store.is_same(other)
        assert not other.is_same(store)


def test_compacting_keeps_every_record(store: Store) -> None:
    store.delete_trials([1])
    store.compact()
    assert [record.number for record in queries.trials(store, KEY)] == [2]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("UPDATE trials SET samples = '[1' WHERE id = 2", "trials 2: samples is not JSON"),
        ("UPDATE trials SET choices = '\\x00' WHERE id = 2", "trials 2: choices is not JSON"),
        ("UPDATE trials SET schedule = '[]' WHERE id = 1", "trials 1: schedule is not JSON"),
        ("UPDATE trials SET latency = 0.5 WHERE id = 1", "trials 1: its checksum is not right"),
    ],
)
def test_damage_is_found(store: Store, postgresql: Server, damage: str, problem: str) -> None:
    assert check(store) == []
    postgresql.execute(damage, make_url(store.name).database or "")
    (found,) = check(store)
    assert found.startswith(problem)


class Failure:
    """Makes a step of a store's transactions fail, `times` over.

    `step` is an event of the engine; of statements only the one that adds trials fails.
    """

    def __init__(self, store: Store, step: str, action: str, times: int = 1) -> None:
        self.left = times
        self._action = action
        event.listen(store.engine, step, self._fail)

    def _fail(self, connection: Any, *details: Any) -> None:
        if details and "INSERT INTO trials" not in details[1]:
            return
        if self.left:
            self.left -= 1
            connection.exec_driver_sql(self._action)


def raises(state: str) -> str:
    """A statement that fails with this code."""
    return f"DO $$ BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = '{state}'; END $$"


LOSE_CONNECTION = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_transaction_that_is_given_up_for_another_is_done_again(store: Store, state: str) -> None:
    failure = Failure(store, "before_cursor_execute", raises(state), times=5)
    assert store.add([trial(2), trial(3)]) == 1
    assert failure.left == 0
    assert queries.count_trials(store) == {"ok": 3}


def test_collisions_without_end_are_left_to_patience(store: Store) -> None:
    Failure(store, "before_cursor_execute", raises("40P01"), times=1000)
    with pytest.raises(DatabaseUnavailableError, match="made up"):
        store.add([trial(3)])


@pytest.mark.parametrize("state", ["53100", "53300", "55P03", "57P01", "58030", "25006"])
def test_what_may_pass_is_tried_again_while_patience_says_so(store: Store, state: str) -> None:
    Failure(store, "before_cursor_execute", raises(state), times=3)
    asked: list[str] = []
    store.patience = lambda error: not asked.append(error.message)  # type: ignore[func-returns-value]
    assert store.add([trial(3)]) == 1
    assert asked == [f"{store.name}: made up"] * 3


@pytest.mark.parametrize("state", ["42501", "23503", "XX001"])
def test_what_will_not_pass_is_an_error_at_once(store: Store, state: str) -> None:
    Failure(store, "before_cursor_execute", raises(state))
    store.patience = lambda error: pytest.fail(f"asked for {error}")
    with pytest.raises(DatabaseError, match="made up"):
        store.add([trial(3)])


@pytest.mark.parametrize("step", ["begin", "before_cursor_execute", "commit"])
def test_lost_connection_is_made_anew_and_trials_are_recorded_once(store: Store, step: str) -> None:
    with pytest.raises(DatabaseUnavailableError):
        Failure(store, step, LOSE_CONNECTION)
        store.add([trial(3)])
    Failure(store, step, LOSE_CONNECTION)
    asked: list[str] = []
    store.patience = lambda error: not asked.append(error.message)  # type: ignore[func-returns-value]
    store.add([trial(3), trial(4)])
    assert len(asked) == 1
    assert queries.count_trials(store) == {"ok": 4}


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that may be stopped."""
    with running_server() as server:
        yield server


def test_job_outlives_a_restart_of_the_server(server: Server) -> None:
    """Writes and reads wait while it is down, and lose nothing that was acknowledged."""
    with server.database() as name, Store.open(server.url(name)) as store:
        populate(store)
        assert store.add([trial(1)]) == 1
        server.stop()
        with pytest.raises(DatabaseUnavailableError, match="Connection refused"):
            store.add([trial(2)])

        def start(error: DatabaseUnavailableError) -> bool:
            server.start()
            return True

        store.patience = start
        assert store.add([trial(1), trial(2)]) == 1
        server.stop()
        assert queries.count_trials(store) == {"ok": 2}
        server.stop()
        server.start()
        store.patience = None
        assert store.add([trial(3)]) == 1  # a new connection, unasked


def test_connection_that_is_lost_while_reading_is_a_readable_error(store: Store) -> None:
    with pytest.raises(DatabaseUnavailableError), store.reading() as session:
        session.connection().exec_driver_sql(LOSE_CONNECTION)


def test_server_is_not_asked_before_a_store_is_opened(tmp_path: Path) -> None:
    """A file whose name looks like a host's is a file."""
    with Store.open(tmp_path / "postgresql:") as store:
        assert store.name == str(tmp_path / "postgresql:")
