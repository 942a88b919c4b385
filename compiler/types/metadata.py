"""Metadata: what a model's file says of the model, kept for programs that read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tunefarm.compiler.types.frozen import frozen


@frozen
class Metadata:
    """The fields of an ONNX file that say who made it and what it is.

    `properties` are its own keys and values: alphabets, class names, labels.
    """

    producer: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    properties: tuple[tuple[str, str], ...] = ()


NO_METADATA = Metadata()


def metadata_to_json(metadata: Metadata) -> dict[str, Any]:
    """An entry `metadata`; nothing for a model that says nothing of itself."""
    return {} if metadata == NO_METADATA else {"metadata": asdict(metadata)}


def metadata_from_json(data: Mapping[str, Any]) -> Metadata:
    """The metadata in a JSON object, if it has any; may raise what JSON makes."""
    found = data.get("metadata")
    if found is None:
        return NO_METADATA
    properties = tuple((str(key), str(value)) for key, value in found["properties"])
    return Metadata(**{**found, "version": int(found["version"]), "properties": properties})
