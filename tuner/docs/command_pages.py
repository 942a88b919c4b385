"""A page per command, made from what the command itself says of its options.

Nothing of these pages is kept in a file: they are made when the site is built or a page is shown,
and so they cannot be older than the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tunefarm.tuner.docs.examples import EXAMPLES

if TYPE_CHECKING:
    from typer.core import TyperGroup

COMMANDS = "commands"
"""The folder of these pages in the site."""

ROOT = "tune"
_SPECIAL = re.compile(r"([\\`*_<>\[\]|#])")


def command_pages(root: TyperGroup) -> dict[str, str]:
    """The Markdown text of each command's page by its path; the first is the list of them."""
    commands = dict(walk(root))
    pages = {f"{COMMANDS}/index": _index(commands)}
    for name, (command, context) in commands.items():
        pages[path_of(name)] = _page(name, command, context, commands)
    return pages


def path_of(name: str) -> str:
    """The page of a command: "tune db list" is commands/db-list, and "tune" commands/tune."""
    return f"{COMMANDS}/{'-'.join(name.split()[1:]) or ROOT}"


def walk(root: TyperGroup) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Every command that is not hidden as ("tune db list", (command, context)), groups first."""
    context = root.make_context(ROOT, [], resilient_parsing=True)
    yield ROOT, (root, context)
    yield from _below(ROOT, root, context)


def _below(name: str, group: Any, context: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for word, command in getattr(group, "commands", {}).items():
        if command.hidden:
            continue
        full = f"{name} {word}"
        inner = command.make_context(word, [], parent=context, resilient_parsing=True)
        yield full, (command, inner)
        yield from _below(full, command, inner)


def _index(commands: Mapping[str, tuple[Any, Any]]) -> str:
    lines = [
        "# Commands",
        "",
        "Each page is made from the command's own code; `--help` behind a command says the same.",
        "",
    ]
    for name, (command, _) in commands.items():
        lines.append(f"- [{name}]({_link(name)}): {_first_line(command)}")
    return "\n".join([*lines, ""])


def _page(name: str, command: Any, context: Any, commands: Mapping[str, tuple[Any, Any]]) -> str:
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    lines = [f"# {name}", "", escaped(_help(command)), "", "```text", usage, "```", ""]
    if (example := EXAMPLES.get(name)) is not None:
        lines += ["## Example", "", f"```{example.language}", example.text, "```", ""]
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    options = [record for record in records if record is not None]
    if options:
        lines += ["## Options", ""]
        lines += [f"- `{option}`: {escaped(says)}" for option, says in options]
        lines.append("")
    below = [other for other in commands if other.rpartition(" ")[0] == name]
    if below:
        lines += ["## Commands below it", ""]
        lines += [
            f"- [{other}]({_link(other)}): {_first_line(commands[other][0])}" for other in below
        ]
        lines.append("")
    return "\n".join(lines)


def _link(name: str) -> str:
    return path_of(name).removeprefix(f"{COMMANDS}/") + ".md"


def _help(command: Any) -> str:
    """What the command says of itself, one paragraph to a line."""
    paragraphs = re.split(r"\n\s*\n", command.help or "")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _first_line(command: Any) -> str:
    return escaped(_help(command).split("\n")[0])


def escaped(text: str) -> str:
    """The text with what Markdown would read as markup escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split(" ")).strip())
