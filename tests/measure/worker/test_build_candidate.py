"""Built candidates travel between processes as bytes that cannot run code."""

from __future__ import annotations

import pickle

import pytest

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.measure.sandbox.messages import Message, encode
from tunefarm.measure.worker.build_candidate import (
    BuiltCandidate,
    pack_candidates,
    unpack_candidates,
)

CANDIDATES = (
    BuiltCandidate("conv", b"\x7fELF\0", 64, (("w", ConstantLayout(((0, 8),), (0, 2, 1), 4)),)),
    BuiltCandidate("add", b""),
)


def test_candidates_come_back_as_they_were() -> None:
    assert unpack_candidates(pack_candidates(CANDIDATES)) == CANDIDATES


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nothing",
        pickle.dumps(CANDIDATES),
        pack_candidates(CANDIDATES)[:-1],
        encode(Message({})),
        encode(Message({"symbol": "f", "workspace_bytes": 0, "constant_layouts": [["w", ["X"]]]})),
        encode(Message({"symbol": "f", "workspace_bytes": 0, "constant_layouts": [["w"]]})),
        encode(Message({"symbol": "f", "workspace_bytes": [], "constant_layouts": []})),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(MeasureError):
        unpack_candidates(data)
