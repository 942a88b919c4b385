"""Hooks of MkDocs (tuner/docs/mkdocs.yml): they add the pages that are made from the code."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.docs.command_pages import COMMANDS, command_pages, path_of, walk
from tunefarm.tuner.docs.pages import REFERENCES


def on_config(config: Any) -> Any:
    """List the commands in the navigation."""
    config.nav = [_with_commands(entry) for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a page per command, and the references."""
    from mkdocs.structure.files import File

    references = {path: reference.make() for path, reference in REFERENCES.items()}
    for path, text in (command_pages(root_command()) | references).items():
        files.append(File.generated(config, f"{path}.md", content=text))
    return files


def root_command() -> TyperGroup:
    """The command `tune` itself, with all others below it."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    return command


def _with_commands(entry: Any) -> Any:
    if entry != {"Commands": f"{COMMANDS}/index.md"}:
        return entry
    names = [name for name, _ in walk(root_command())]
    return {
        "Commands": [f"{COMMANDS}/index.md", *({name: f"{path_of(name)}.md"} for name in names)]
    }
