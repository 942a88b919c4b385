"""The command `tune docs`: the documentation, read offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefarm.tuner.commands.options import UsageError
from tunefarm.tuner.reports.terminal import console

_WIDTH = 100  # columns of a page, at most


def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="PAGE", help="A page, or a command; none lists them.")
    ] = None,
    build: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write the site into this folder.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show the site in a browser, on this machine alone.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="P", help="Of --serve; 0 takes a free one.")
    ] = 0,
) -> None:
    """Read the documentation: a page in the terminal, or all of it as a site. Needs no network."""
    if sum((page is not None, build is not None, serve)) > 1:
        raise UsageError("a page, --build or --serve: one of them")
    if build is not None:
        from tunefarm.tuner.docs.site import build_site, check_folder

        folder = Path(build)
        check_folder(folder)
        build_site(folder)
        print(folder / "index.html")
    elif serve:
        _serve(port)
    else:
        _print_page(page)


def _serve(port: int) -> None:
    from tunefarm.tuner.docs.site import address_of, served_site

    with served_site(port) as server:
        print(address_of(server), flush=True)
        server.serve_forever()


def _print_page(name: str | None) -> None:
    from rich.markdown import Markdown

    from tunefarm.tuner.commands.docs_hooks import root_command
    from tunefarm.tuner.docs.pages import all_pages, find_page

    pages = all_pages(root_command())
    if name is None:
        width = max(map(len, pages))
        for path in pages:
            print(f"{path:{width}}  {pages.title(path)}")
        return
    text = pages[find_page(pages, name)]
    terminal = console()
    terminal.print(Markdown(text, hyperlinks=False), width=min(terminal.width, _WIDTH))
