"""A board that all drivers of a Ray cluster read and write: key and value, kept by its head node.

It holds what the farm's versions are (`tunefarm.measure.sandbox.versions`), and what each driver
says of itself now and then (`tunefarm.measure.farm.fair_share`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tunefarm.measure.farm.fair_share import Beat
from tunefarm.measure.farm.ray_start import head_client

_NAMESPACE = b"tunefarm"
_VERSIONS = b"versions"
_DRIVER = b"driver:"
_SECONDS = 10.0  # that an answer may take


class Board:
    """The board of the cluster at an address. Raises what Ray does when there is no answer."""

    def __init__(self, address: str) -> None:
        self._client = head_client(address)

    def say_versions(self, versions: Mapping[str, str]) -> None:
        """Note what the versions of the farm are."""
        self._put(_VERSIONS, dict(versions))

    def versions(self) -> dict[str, str] | None:
        """What the versions of the farm are; None if nobody has noted them."""
        found = self._get(_VERSIONS)
        return found if isinstance(found, dict) else None

    def say(self, driver: str, beat: Beat, about: Mapping[str, object]) -> None:
        """What a driver says of itself; `about` is for people."""
        self._put(_DRIVER + driver.encode(), {**about, "number": beat.number, "wants": beat.wants})

    def drivers(self) -> dict[str, dict[str, Any]]:
        """What the drivers have said of themselves, by their names."""
        keys = self._client.internal_kv_keys(_DRIVER, _NAMESPACE, timeout=_SECONDS)
        found = {key.removeprefix(_DRIVER).decode(errors="replace"): self._get(key) for key in keys}
        return {name: said for name, said in found.items() if isinstance(said, dict)}

    def forget(self, driver: str) -> None:
        """Take away what a driver has said."""
        key = _DRIVER + driver.encode()
        self._client.internal_kv_del(key, False, _NAMESPACE, timeout=_SECONDS)

    def _put(self, key: bytes, value: object) -> None:
        data = json.dumps(value).encode()
        self._client.internal_kv_put(key, data, True, _NAMESPACE, timeout=_SECONDS)

    def _get(self, key: bytes) -> Any:
        data = self._client.internal_kv_get(key, _NAMESPACE, timeout=_SECONDS)
        try:
            return None if data is None else json.loads(data)
        except ValueError:
            return None


def no_answer(address: str, error: Exception) -> str:
    """Why the head of the farm at an address did not answer, in a line."""
    text = str(error).strip()
    if "InvalidAuthToken" in text:
        return f"the farm at {address} has another token than this one"
    reason = text.splitlines()[0] if text else type(error).__name__
    return f"the farm at {address} does not answer: {reason}"


def beats_of(said: Mapping[str, Mapping[str, Any]]) -> dict[str, Beat]:
    """What drivers have said, as far as it can be read."""
    found = {}
    for name, values in said.items():
        number, wants = values.get("number"), values.get("wants")
        if isinstance(number, int) and isinstance(wants, int):
            found[name] = Beat(number, wants)
    return found
