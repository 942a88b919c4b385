"""How commands introduce themselves, and what is said of one that was typed wrongly."""

from __future__ import annotations

import re
import shlex
from typing import Any

from typer.core import TyperGroup
from typer.exceptions import TyperException

from tunefarm.tuner.commands.options import UsageError

ORDER = (
    *("zoo", "build", "run", "bench", "report", "verify", "doctor"),
    *("status", "watch", "stop", "resume", "jobs", "farm", "inspect", "db", "docs"),
)
"""The commands as a newcomer meets them; others come after these."""
FIRST_STEPS = (
    "First steps: tune zoo resnet18 --output resnet18.onnx; "
    "tune --model resnet18.onnx --config quick. Each command says what to type next."
)
_SENTENCE = re.compile(r"(.+?\.)(?:\s|$)", re.DOTALL)
_MODEL_FILE = re.compile(r"No such command '(.+\.onnx)'\.")


class Workflow(TyperGroup):
    """Commands in the order in which they are used, each with its whole first sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, those of ORDER first."""
        names = list(super().list_commands(ctx))
        known = [name for name in ORDER if name in names]
        return known + [name for name in names if name not in known]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write them, wrapped where the terminal is narrow, and none cut short."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, first_sentence(command.help or "")))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def first_sentence(text: str) -> str:
    """What a command does, in one sentence on one line."""
    found = _SENTENCE.match(text.strip())
    return " ".join((found[1] if found else text).split())


def is_help(error: TyperException) -> bool:
    """Whether it is the help of a command that was typed without any of its own commands."""
    return error.format_message().startswith("Usage: ")


def usage_message(error: TyperException) -> str:
    """What was typed wrongly, and where to read what can be typed."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if context is None or isinstance(error, UsageError):  # ours say what to type
        return message
    if model := _MODEL_FILE.match(message):
        return f"{message} To tune a model: {shlex.join(['tune', '--model', model[1]])}"
    command = context.command_path
    parameter = getattr(error, "param", None)
    if parameter is not None and message.startswith("Missing "):
        is_option = parameter.opts[0].startswith("-")
        value = parameter.metavar or parameter.name.upper()
        what = f"{parameter.opts[0]} {value}" if is_option else value
        message = f"{command} needs {what}"
    return f"{message.rstrip('.')} (see {command} --help)"
