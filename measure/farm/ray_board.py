"""A board that all of a Ray cluster can read: key and value, kept by its head node.

It holds what the farm's versions are (`tunefarm.measure.sandbox.versions`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tunefarm.measure.farm.ray_start import head_client

_NAMESPACE = b"tunefarm"
_VERSIONS = b"versions"
_SECONDS = 10.0  # that an answer may take


class Board:
    """The board of the cluster at an address. Raises what Ray does when there is no answer."""

    def __init__(self, address: str) -> None:
        self._client = head_client(address)

    def say_versions(self, versions: Mapping[str, str]) -> None:
        """Note what the versions of the farm are."""
        data = json.dumps(dict(versions)).encode()
        self._client.internal_kv_put(_VERSIONS, data, True, _NAMESPACE, timeout=_SECONDS)

    def versions(self) -> dict[str, str] | None:
        """What the versions of the farm are; None if nobody has noted them."""
        data = self._client.internal_kv_get(_VERSIONS, _NAMESPACE, timeout=_SECONDS)
        try:
            found = None if data is None else json.loads(data)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


def no_answer(address: str, error: Exception) -> str:
    """Why the head of the farm at an address did not answer, in a line."""
    text = str(error).strip()
    if "InvalidAuthToken" in text:
        return f"the farm at {address} has another token than this one"
    reason = text.splitlines()[0] if text else type(error).__name__
    return f"the farm at {address} does not answer: {reason}"
