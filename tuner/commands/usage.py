"""What all commands share: how they are typed, how their help looks, and errors of usage."""

from __future__ import annotations

import copy
import os
import re
import shlex
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from tunefarm.tuner.commands.options import PANELS, UsageError

if TYPE_CHECKING:
    _Typed = TyperCommand
else:
    _Typed = object

ORDER = (
    *("zoo", "build", "run", "generate", "bench", "report", "verify", "doctor"),
    *("status", "watch", "stop", "resume", "jobs", "farm", "inspect", "db", "docs"),
)
"""The commands as a newcomer meets them; others come after these."""
FIRST_STEPS = (
    "First steps: tune zoo resnet18 --output resnet18.onnx; "
    "tune resnet18.onnx --config quick. Each command prints what to type next."
)
FORMER_OPTIONS = {"--numerics": "--precision", "--quantised": "--quantized"}
"""Options by their former names: they work, and no help shows them."""
_MODEL = "model"
_SENTENCE = re.compile(r"(.+?\.)(?:\s|$)", re.DOTALL)


class _ModelCommand(_Typed):
    """Options under their former names, a model without `--model`, and help in panels."""

    def make_parser(self, ctx: Any) -> Any:
        """A parser that also takes former names, and the model as an argument."""
        parser: Any = super().make_parser(ctx)
        for former, name in FORMER_OPTIONS.items():
            for parameter in self.params:
                if name in parameter.opts:
                    alias = copy.copy(parameter)
                    alias.opts = [former]
                    alias.add_to_parser(parser, ctx)
        if self._model is not None:
            parse = parser.parse_args
            parser.parse_args = lambda args: self._with_model(ctx, parse, args)
        return parser

    @property
    def _model(self) -> Any:
        """The option `--model`, if the command has it: not an argument of that name."""
        options = (each for each in self.params if each.param_type_name == "option")
        return next((each for each in options if each.name == _MODEL), None)

    def _with_model(self, ctx: Any, parse: Any, args: Sequence[str]) -> tuple[Any, Any, Any]:
        """What `parse` finds, with the arguments that are models as the values of `--model`."""
        option = self._model
        given, rest, order = parse([*args])
        models = self._models(ctx, rest)
        if not models:
            return given, rest, order
        if ctx.allow_interspersed_args:
            rest = rest[len(models) :]
        else:  # a group stops at its first argument: the options behind that are still to be read
            given, rest, order = parse([*args[: len(args) - len(rest)], *rest[1:]])
            models += self._models(ctx, rest)
        if ctx.resilient_parsing:
            return given, rest, order
        if _MODEL in given:
            raise UsageError(f"{models[0]} and --model are both given: give the model once")
        if len(models) > 1 and not option.multiple:
            many = shlex.join(["tune", "jobs", "add", *models])
            raise UsageError(f"{' and '.join(models)}: one model at a time, or {many}")
        given[_MODEL] = models if option.multiple else models[0]
        return given, rest, order

    def _models(self, ctx: Any, rest: Sequence[str]) -> list[str]:
        """The first arguments, which are no options that another command is to read."""
        return [*takewhile(lambda word: not word.startswith("-"), rest)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As it is typed, with the model."""
        option = self._model
        models = [] if option is None else ["MODEL [MODEL]..." if option.multiple else "MODEL"]
        return [*super().collect_usage_pieces(ctx), *models]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by their panels."""
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        rows |= {panel: [] for panel in PANELS}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            if parameter is self._model:  # it is not the option that is required
                row = row[0], parameter.help
            is_argument = parameter.param_type_name == "argument"
            panel = getattr(parameter, "rich_help_panel", None) or PANELS[-1]
            rows["Arguments" if is_argument else panel].append(row)
        for panel, found in rows.items():
            if found:
                with formatter.section(panel):
                    formatter.write_dl(found)


class Command(_ModelCommand, TyperCommand):
    """A command of `tune`."""


class Workflow(_ModelCommand, TyperGroup):
    """Commands in the order in which they are used, each with its whole first sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, those of ORDER first."""
        names = list(super().list_commands(ctx))
        known = [name for name in ORDER if name in names]
        return known + [name for name in names if name not in known]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As it is typed: a command, or a model where the group takes one."""
        pieces = TyperGroup.collect_usage_pieces(self, ctx)
        return pieces if self._model is None else [*pieces[:-1], f"MODEL | {pieces[-1]}"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options by their panels, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

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

    def _models(self, ctx: Any, rest: Sequence[str]) -> list[str]:
        """The first argument, if it is a file and no command."""
        is_model = rest and rest[0] not in self.commands and _is_file(rest[0])
        return [rest[0]] if is_model else []

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of that name, or what to type instead."""
        try:
            return super().resolve_command(ctx, args)
        except TyperException as error:
            if self._model is not None and "Did you mean" not in error.format_message():
                raise UsageError(
                    f"{args[0]!r} is no command, and there is no such file (see tune --help)"
                ) from error
            raise


def _is_file(word: str) -> bool:
    """Whether an argument is a file, or can be nothing else."""
    return os.sep in word or word.endswith(".onnx") or os.path.lexists(word)


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
    command = context.command_path
    parameter = getattr(error, "param", None)
    if parameter is not None and message.startswith("Missing "):
        what = f"{parameter.opts[0]} {parameter.metavar or parameter.name.upper()}"
        if parameter.name == _MODEL:
            what = f"a model: {command} MODEL"
        elif not parameter.opts[0].startswith("-"):
            what = parameter.metavar or parameter.name.upper()
        message = f"{command} needs {what}"
    return f"{message.rstrip('.')} (see {command} --help)"
