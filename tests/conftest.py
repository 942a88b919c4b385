"""Fixtures and options that every area's tests may use."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

from tests.db import postgresql as server
from tunefarm.db.store import Store

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what is behind an "&"
    signal.signal(signal.SIGINT, signal.default_int_handler)

_NOBODY = 65534
_ALONE = (
    "tests/measure/farm/test_faults.py",
    "tests/measure/farm/test_lost_cores.py",
    "tests/measure/test_core_locks.py",
    "tests/measure/worker/test_early_stop.py",
    "tests/measure/worker/test_roof.py",
    "tests/compiler/runtime/machine/test_slice_clock.py",
    "tests/measure/worker/test_undisturbed.py",
    "tests/measure/worker/test_timer.py",
    "tests/measure/worker/test_run_candidate.py",
    "tests/end_to_end/test_cli.py",
    "tests/tuner/confirm/test_latency.py",
    "tests/compiler/runtime/test_concurrent_runs.py",
    "tests/compiler/runtime/machine/test_thread_pool.py",
)
"""What is wrong where others load the cores; the rest may run in several processes."""
_SAMPLED = (
    "tests/attack/test_invocations.py",
    "tests/compiler/frontend/",
    "tests/compiler/graph/",
    "tests/compiler/llvm/",
    "tests/compiler/loops/",
    "tests/compiler/operators/",
    "tests/compiler/plan/",
    "tests/compiler/runtime/",
    "tests/compiler/schedule/",
    "tests/compiler/test_cache_room.py",
    "tests/compiler/test_causal_prompts.py",
    "tests/compiler/test_generation.py",
    "tests/compiler/test_pipeline.py",
    "tests/compiler/test_texts.py",
    "tests/contracts/test_store_contract.py",
    "tests/contracts/test_strategy_contract.py",
    "tests/db/test_damage.py",
    "tests/db/test_disk_faults.py",
    "tests/db/test_export.py",
    "tests/db/test_joined_exports.py",
    "tests/db/test_upgrade.py",
    "tests/end_to_end/test_build.py",
    "tests/end_to_end/test_emit.py",
    "tests/end_to_end/test_emulated_models.py",
    "tests/end_to_end/test_half_precision_patterns.py",
    "tests/end_to_end/test_models.py",
    "tests/end_to_end/test_shell_limits.py",
    "tests/end_to_end/test_storage_types.py",
    "tests/measure/farm/test_faults.py",
    "tests/measure/worker/test_early_stop.py",
    "tests/tuner/building/",
    "tests/tuner/commands/",
    "tests/tuner/model/",
    "tests/tuner/records/",
    "tests/tuner/verify/",
    "tests/tuner/search/test_noisy_search.py",
    "tests/tuner/search/test_replay.py",
    "tests/tuner/test_clock_jumps.py",
    "tests/tuner/test_recorded.py",
)
"""What has many cases of one kind that take long: about an eighth of them runs by day."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew from what the code prints now",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Child processes of tests find `tests`; tunefarm is found where it is installed."""
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(config.rootpath)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of `-m 'alone and ...'` only the files that have such tests are imported."""
    if not config.option.markexpr.startswith("alone and ") or collection_path.suffix != ".py":
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    may_have = path.startswith(_ALONE) or "mark.alone" in collection_path.read_text("utf-8")
    return None if may_have else True


def pytest_collection(session: pytest.Session) -> None:
    """Of several workers each imports its share of all tests first: what it writes as bytecode the
    others need not compile."""
    worker, root = getattr(session.config, "workerinput", None), session.config.rootpath
    if worker is None or [root / given for given in session.config.args] != [root / "tests"]:
        return
    paths = sorted((root / "tests").rglob("test_*.py"))
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in paths[number::count]:
        with suppress(Exception, pytest.skip.Exception):  # collecting it says so
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    """By day no case is made that is left to the night: there are twice as many of those."""
    result = yield
    function, options = metafunc.definition, metafunc.config.option
    if "not nightly" in options.markexpr and not any("::" in path for path in metafunc.config.args):
        calls, name = metafunc._calls, function.nodeid
        if function.get_closest_marker("nightly"):
            del calls[1:]
        elif name.startswith(_SAMPLED):
            calls[1:] = [call for call in calls[1:] if not _is_left(f"{name}[{call.id}]")]
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    functions: set[str] = set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        path = function.partition("::")[0]
        if path.startswith(_ALONE):
            item.add_marker(pytest.mark.alone)
        if path.startswith(_SAMPLED) and function in functions and _is_left(item.nodeid):
            item.add_marker(pytest.mark.nightly)
        functions.add(function)


def pytest_collection_finish() -> None:
    """Leave the thousands of tests, and what they imported, out of every garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def _is_left(case: str) -> bool:
    """Whether a case of a function that is sampled is left to the night."""
    return zlib.crc32(case.encode()) % 8 != 0


LIMIT_SECONDS = 600.0
"""Of a test's set-up, of the test, and of its end: nothing that they wait for takes as long."""
_NIGHTLY_SECONDS = 6 * 3600.0
_AGAIN_SECONDS = 5.0  # what waits again while it is left is ended as well


class OutOfTimeError(BaseException):
    """A test took longer than its limit."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError in the block, in what it waits for, after `seconds`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def out_of_time(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        raise OutOfTimeError(f"not done after {seconds:g} s")

    former = signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def _limit(item: pytest.Item) -> float:
    return _NIGHTLY_SECONDS if item.get_closest_marker("nightly") else LIMIT_SECONDS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with limited(_limit(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with limited(_limit(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with limited(_limit(item)):
        return (yield)


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True, scope="session")
def builds_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep compiled kernels out of the user's cache, and builds alike on all CPUs: those that
    records are shipped for too. Child processes inherit both."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["TUNEFARM_DATABASE__SHIPPED"] = "false"


@pytest.fixture(scope="session")
def folder_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the test processes of a run have in common."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The file of a tiny network: convolution, product, softmax."""
    import onnx

    from tests.end_to_end.tiny_model import tiny_model

    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_model(), path)
    return path


@pytest.fixture
def unwritable_folder() -> Iterator[Path]:
    """A folder that this process may read but not write, even where tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="tunefarm-"))
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(_NOBODY)
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[server.Server]:
    """A PostgreSQL server; the test is skipped where none is installed, or fails in `.ci/run`."""
    with server.running_server() as running:
        yield running


@pytest.fixture(scope="session")
def postgresql_template(postgresql: server.Server) -> Iterator[str]:
    """The name of a database that has the tables and no rows: a copy needs no migrations."""
    with postgresql.database() as name:
        Store.open(postgresql.url(name)).close()
        yield name


@pytest.fixture
def postgresql_url(request: pytest.FixtureRequest, postgresql: server.Server) -> Iterator[str]:
    """A URL, with a password, of a new database: with tables if the test has a `store` of it, else
    empty."""
    has_tables = "store" in request.fixturenames
    template = request.getfixturevalue("postgresql_template") if has_tables else "template0"
    with postgresql.database(template=template) as name:
        yield postgresql.url(name)
