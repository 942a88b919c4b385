"""Who may run code on a Ray cluster: whoever has its token. What Ray needs for that."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tunefarm.compiler.errors import MeasureError
from tunefarm.configs.files import replacing
from tunefarm.measure.farm.farm_records import records


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
