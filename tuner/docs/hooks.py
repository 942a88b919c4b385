"""Hooks of MkDocs (mkdocs.yml): they add the pages that are generated from the code."""

from __future__ import annotations

from typing import Any

from tunefarm.tuner.docs.pages import REFERENCES


def on_files(files: Any, config: Any) -> Any:
    """Add the references."""
    from mkdocs.structure.files import File

    for name, reference in REFERENCES.items():
        files.append(File.generated(config, f"{name}.md", content=reference.make()))
    return files
