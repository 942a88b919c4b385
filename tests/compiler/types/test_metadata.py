"""What a model's file says of the model, to JSON and back."""

from __future__ import annotations

import json

import pytest

from tunefarm.compiler.types.metadata import (
    NO_METADATA,
    Metadata,
    metadata_from_json,
    metadata_to_json,
)


@pytest.mark.parametrize(
    "metadata", [NO_METADATA, Metadata("exporter", version=3), Metadata(properties=(("a", "b"),))]
)
def test_metadata_come_back_and_none_take_no_entry(metadata: Metadata) -> None:
    kept = json.loads(json.dumps(metadata_to_json(metadata)))
    assert metadata_from_json(kept) == metadata
    assert ("metadata" in kept) is (metadata != NO_METADATA)
