"""The documentation as a site: built and served by MkDocs, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunefarm.configs.errors import SettingsError

CONFIGURATION = Path(__file__).parent / "mkdocs.yml"
_INSTALL = "pip install 'tunefarm[docs]', or read a page here: tune docs PAGE"


def build_site(folder: Path) -> None:
    """Write the site into a folder, which is emptied first.

    Warnings, of links that lead nowhere for example, are errors. Raises SettingsError, also where
    MkDocs is not installed.
    """
    with _mkdocs():
        from mkdocs.commands.build import build
        from mkdocs.config import load_config

        build(load_config(str(CONFIGURATION), site_dir=str(folder.resolve()), strict=True))


def serve_site(port: int) -> None:
    """Show the site on loopback until Ctrl-C. Raises SettingsError as `build_site` does."""
    with _mkdocs():
        from mkdocs.commands.serve import serve

        print(f"http://127.0.0.1:{port}/", flush=True)
        serve(str(CONFIGURATION), livereload=False, dev_addr=f"127.0.0.1:{port}")


@contextmanager
def _mkdocs() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise SettingsError("the site is made by MkDocs, which is missing", hint=_INSTALL) from None
    except (Exception, SystemExit) as error:
        raise SettingsError(f"the documentation cannot be built: {error}") from error


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than a site. Raises SettingsError."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; the site needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "index.html").is_file():
        raise SettingsError(
            f"{folder} holds something else than a site", hint="name a new or an empty folder"
        )
    if not folder.resolve().parent.is_dir():
        raise SettingsError(f"there is no folder {folder.resolve().parent}")
