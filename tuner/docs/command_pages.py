"""A page per command, made from what the command itself says of its options.

Nothing of these pages is kept in a file: they are made when the site is built or a page is shown,
and so they cannot be older than the code.

The tests run the examples that can run by themselves, in a folder that holds `mlp.onnx`, a small
model of the zoo, and `tuning.db`, which has its records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True, slots=True)
class _Example:
    """Lines for a shell; `runs` says whether they can be run in a test."""

    text: str
    runs: bool = True

    @property
    def language(self) -> str:
        """Of the fenced block: sh blocks are run, console blocks are shown."""
        return "sh" if self.runs else "console"


EXAMPLES: Mapping[str, _Example] = {
    "tune": _Example("tune mlp.onnx --db tuning.db --runner local --trials 24"),
    "tune build": _Example(
        "tune build mlp.onnx --db tuning.db -o mlp.tuned\n"
        "tune build mlp.onnx --untuned -o mlp.untuned    # without records"
    ),
    "tune run": _Example(
        "tune build mlp.onnx --db tuning.db -o mlp.tuned\ntune run mlp.tuned --repeat 20 --profile"
    ),
    "tune generate": _Example(
        "tune zoo decoder_step --dynamic -o decoder.onnx\n"
        "tune build decoder.onnx --shape batch=1 --shape past_sequence_length=0..63 --untuned "
        "-o decoder.tuned\n"
        "tune generate decoder.tuned --prompt-ids 17,4,8 --max-tokens 12"
    ),
    "tune bench": _Example("tune bench mlp.onnx --db tuning.db --against onnxruntime"),
    "tune zoo": _Example(
        "tune zoo mlp -o small.onnx\ntune zoo mlp --quantized -o small_8_bits.onnx"
    ),
    "tune inspect": _Example(
        "tune inspect mlp.onnx --stage kernels\ntune inspect mlp.onnx --stage loops --db tuning.db"
    ),
    "tune report": _Example("tune report --db tuning.db --html report.html"),
    "tune status": _Example("tune status --db tuning.db"),
    "tune stop": _Example("tune stop last --db tuning.db", runs=False),
    "tune resume": _Example("tune resume last --db tuning.db --minutes 30", runs=False),
    "tune watch": _Example("tune watch --db tuning.db", runs=False),
    "tune doctor": _Example("tune doctor", runs=False),
    "tune verify": _Example("tune verify mlp.onnx --db tuning.db", runs=False),
    "tune jobs": _Example("tune jobs list --db tuning.db"),
    "tune jobs add": _Example("tune jobs add --model mlp.onnx --db tuning.db --threads 1"),
    "tune jobs list": _Example("tune jobs list --db tuning.db"),
    "tune jobs run": _Example("tune jobs run --db tuning.db --until 07:00", runs=False),
    "tune jobs remove": _Example("tune jobs remove --finished --db tuning.db"),
    "tune farm": _Example("tune farm status", runs=False),
    "tune farm start": _Example("tune farm start", runs=False),
    "tune farm join": _Example("tune farm join HEAD:6379 --token-file farm-token", runs=False),
    "tune farm status": _Example("tune farm status", runs=False),
    "tune farm stop": _Example("tune farm stop", runs=False),
    "tune docs": _Example("tune docs\ntune docs sizes\ntune docs build"),
    "tune db": _Example("tune db list --db tuning.db"),
    "tune db list": _Example("tune db list --db tuning.db"),
    "tune db show": _Example(
        "# the start of a kernel's key, from tune db list\n"
        'key=$(tune db list --db tuning.db --json - | grep -om1 \'"workload": "[0-9a-f]*\''
        " | cut -d'\"' -f4)\n"
        'tune db show "$key" --db tuning.db --top 5'
    ),
    "tune db why": _Example("tune db why mlp.onnx --db tuning.db"),
    "tune db builds": _Example("tune db builds --db tuning.db"),
    "tune db export": _Example("tune db export --db tuning.db -o night.jsonl"),
    "tune db import": _Example(
        "tune db export --db tuning.db -o night.jsonl\ntune db import night.jsonl --db other.db"
    ),
    "tune db merge": _Example("tune db merge tuning.db --db all.db"),
    "tune db pack": _Example("tune db pack mlp.onnx --db tuning.db -o mlp.pack"),
    "tune db add": _Example(
        "tune db pack mlp.onnx --db tuning.db -o team.pack\ntune db add team.pack --db mine.db"
    ),
    "tune db rollback": _Example(
        "tune db merge tuning.db --db merged.db\ntune db rollback --db merged.db"
    ),
    "tune db prune": _Example("tune db prune --db tuning.db --keep 64 --dry-run"),
    "tune db check": _Example("tune db check --db tuning.db --replay 2"),
    "tune db salvage": _Example("tune db salvage tuning.db -o saved.db"),
    "tune db upgrade": _Example("tune db upgrade --db tuning.db"),
}
