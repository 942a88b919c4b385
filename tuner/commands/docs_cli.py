"""The command `tune docs`: the documentation, read offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import show
from tunefarm.tuner.commands.options import JsonOption, UsageError
from tunefarm.tuner.reports.terminal import console

_WIDTH = 100  # columns of a page, at most


def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="PAGE", help="A page or a command [default: list all].")
    ] = None,
    build: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write the site to this folder.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the site for a browser on this machine.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="P", help="Port of --serve; 0: a free one.")
    ] = 0,
    json: JsonOption = None,
) -> None:
    """Read the documentation: a page in the terminal, or all of it as a site. Needs no network."""
    if sum((page is not None, build is not None, serve, json is not None)) > 1:
        raise UsageError("a page, --build, --serve and --json exclude each other: give one of them")
    if build is not None:
        from tunefarm.tuner.docs.site import build_site, check_folder

        folder = Path(build)
        check_folder(folder)
        build_site(folder)
        print(folder / "index.html")
    elif serve:
        _serve(port)
    else:
        _print_page(page, json)


def _serve(port: int) -> None:
    from tunefarm.tuner.docs.site import address_of, served_site

    with served_site(port) as server:
        print(address_of(server), flush=True)
        server.serve_forever()


def _print_page(name: str | None, json: str | None) -> None:
    check_files(writes=[json])
    from rich.markdown import Markdown

    from tunefarm.tuner.commands.docs_hooks import root_command
    from tunefarm.tuner.docs.pages import all_pages, find_page

    pages = all_pages(root_command())
    if name is None:
        width = max(map(len, pages))
        titles = {path: pages.title(path) for path in pages}
        listed = [{"page": path, "title": title} for path, title in titles.items()]
        show(json, listed, *(f"{path:{width}}  {title}" for path, title in titles.items()))
        return
    text = pages[find_page(pages, name)]
    terminal = console()
    terminal.print(Markdown(text, hyperlinks=False), width=min(terminal.width, _WIDTH))
