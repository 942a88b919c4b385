"""What `tune farm` has started on this machine, remembered in files so that it can be ended.

A file names processes by their ids and start times: what it says of an earlier boot of the machine,
or of processes that have ended, is not taken for what runs now.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tunefarm.compiler.errors import MeasureError
from tunefarm.configs.files import replacing, write_text
from tunefarm.configs.private_folder import make_private
from tunefarm.configs.settings import state_folder
from tunefarm.measure.sandbox.reaper import Process, is_alive

Role: TypeAlias = Literal["head", "node"]
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class FarmRecord:
    """A head or node of a farm that was started here.

    `tag` is its name and the mark of its processes (see `tunefarm.measure.sandbox.reaper`),
    `address` that of the farm's head, `folder` where Ray keeps its own files, `started` seconds
    since the epoch.
    """

    tag: str
    role: Role
    address: str
    token_file: str
    slots: int
    niceness: int
    folder: str
    processes: tuple[Process, ...]
    boot: str
    started: float

    @property
    def is_alive(self) -> bool:
        """Whether any of its processes runs."""
        return self.boot == boot_id() and any(map(is_alive, self.processes))

    @property
    def ended_by(self) -> str:
        """Why it does not run any more, for people."""
        if self.boot != boot_id():
            return "the machine has been started anew since"
        return "its processes have ended"


def records() -> list[FarmRecord]:
    """Everything that was started here and not ended by `forget`, the oldest first."""
    found = []
    for path in sorted(_folder().glob("*.json")):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            values: dict[str, Any] = json.loads(path.read_text())
            processes = tuple(Process(*process) for process in values.pop("processes"))
            found.append(FarmRecord(**values, processes=processes))
    return sorted(found, key=lambda record: record.started)


def remember(record: FarmRecord) -> None:
    """Write what was started. Raises OSError."""
    make_private(_folder())
    write_text(_path(record.tag), json.dumps(asdict(record), indent=2) + "\n")


def forget(record: FarmRecord) -> None:
    """Take a record away. Idempotent."""
    _path(record.tag).unlink(missing_ok=True)


def boot_id() -> str:
    """What tells one boot of this machine from another; "" where nothing does."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def token_path() -> Path:
    """Where the token of a farm that starts here is kept, unless another file is named."""
    return state_folder() / "farm-token"


def _folder() -> Path:
    return state_folder() / "farm"


def _path(tag: str) -> Path:
    return _folder() / f"{tag}.json"


# Who may run code on a Ray cluster: whoever has its token. What Ray needs for that.


def authentication(address: str, token_file: str | None) -> dict[str, str]:
    """Ray's settings for tokens: an embedded cluster has one that nobody else knows.

    Ray gives whoever reaches its ports the right to run code. Without a token file, the one counts
    with which this machine has started or joined the farm of that address; a cluster of others gets
    what the user's environment says.
    """
    if address == "local":
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    if token_file is None:
        known = [record.token_file for record in records() if record.address == address]
        if not known:
            return {}
        token_file = known[0]
    return of_token_file(token_file)


def of_token_file(token_file: str) -> dict[str, str]:
    """Ray's settings for the token of a file. Raises MeasureError if there is none."""
    if not Path(token_file).is_file():
        raise MeasureError(
            f"there is no token file {token_file}",
            hint="copy the one that tune farm start has named; measure.token_file names it",
        )
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(Path(token_file).resolve())}


def make_token_file(path: Path) -> None:
    """Write a new token, for this user alone, unless there is one. Raises OSError."""
    if path.exists():
        return
    with replacing(path) as new:
        new.touch(mode=0o600)
        new.write_text(secrets.token_hex(32))


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, for this process and those that are started meanwhile."""
    before = dict(os.environ)  # noqa: TID251
    os.environ.update(values)  # noqa: TID251
    try:
        yield
    finally:
        for name in values:
            if name in before:
                os.environ[name] = before[name]  # noqa: TID251
            else:
                del os.environ[name]  # noqa: TID251
