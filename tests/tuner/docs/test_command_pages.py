"""A page per command: of every one, with all its options and an example."""

from __future__ import annotations

import typer
from typer.core import TyperGroup

from tunefarm.tuner.commands.docs_hooks import root_command
from tunefarm.tuner.docs.command_pages import EXAMPLES, command_pages, path_of, walk


def test_every_command_has_a_page_and_an_example() -> None:
    names = [name for name, _ in walk(root_command())]
    pages = command_pages(root_command())
    assert set(map(path_of, names)) | {"commands/index"} == set(pages)
    assert set(names) == set(EXAMPLES)
    for name in names:
        assert "## Example" in pages[path_of(name)]
        assert f"[{name}](" in pages["commands/index"]
        last_line = EXAMPLES[name].text
        assert name in last_line or " " not in name, name


def test_every_option_is_on_the_page_of_its_command() -> None:
    pages = command_pages(root_command())
    for name, (command, context) in walk(root_command()):
        for parameter in command.get_params(context):
            for option in (*parameter.opts, *parameter.secondary_opts):
                if parameter.param_type_name == "option" and not parameter.hidden:
                    assert (
                        f"`{option}" in pages[path_of(name)] or f" {option}" in pages[path_of(name)]
                    ), (name, option)


def test_commands_are_read_from_the_code() -> None:
    app = typer.Typer()
    inner = typer.Typer(help="Things *inside*.")
    app.add_typer(inner, name="in")

    @app.callback()
    def root() -> None:
        """The root."""

    @inner.command()
    def go(count: int = typer.Option(3, help="How <often> | many.")) -> None:
        """Go there.

        And back.
        """

    @app.command(hidden=True)
    def secret() -> None:
        """Not shown."""

    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    pages = command_pages(command)
    assert set(pages) == {"commands/index", "commands/tune", "commands/in", "commands/in-go"}
    page = pages["commands/in-go"]
    assert page.startswith("# tune in go\n\nGo there.\n\nAnd back.\n")
    assert r"- `--count <int>`: How \<often\> \| many." in page
    assert r"Things \*inside\*." in pages["commands/in"]
    assert "[tune in go](in-go.md): Go there." in pages["commands/in"]
