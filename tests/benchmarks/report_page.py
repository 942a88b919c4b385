"""The report of a night: its size, how long it takes to make, and to become interactive.

    python -m tests.benchmarks.report_page [--kernels 40] [--trials 125] [--keep FOLDER]

The database is made of records. The page is made twice by `tune report`, as a user would: first
with an empty cache of code, then again. It is opened in headless Chromium, if that is installed;
`interactive` is the page's own clock when its search, tables and links work, from the beginning of
the navigation, `kernel` when all plots of a kernel that was opened are drawn.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.tuner.pages.browser import chromium, running_browser
from tests.tuner.pages.made_up import fill
from tunefarm.db.store import Store

OPENINGS = 5
_LIMIT_SECONDS = 300.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kernels", type=int, default=40)
    parser.add_argument("--trials", type=int, default=125, help="of each kernel")
    parser.add_argument("--keep", help="folder for the database and the page")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(exist_ok=True)
        database, page = folder / "tuning.db", folder / "report.html"
        with Store.open(database) as store:
            fill(store, options.kernels, options.trials, name="resnet18.onnx")
        environment = {**os.environ, "XDG_CACHE_HOME": str(Path(temporary) / "cache")}
        for cache in ("empty", "filled"):
            seconds, used = _made(database, page, environment)
            print(f"made with {cache} cache: {seconds:.2f} s, {used:.2f} s of a core")
        count = options.kernels * options.trials
        print(f"{count} trials: {page.stat().st_size / 1e6:.2f} MB")
        if chromium() is not None:
            _opened(page)


def _made(database: Path, page: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds that it took, and those of a core that it used: less than the first on a machine
    that does other things."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [str(Path(sys.executable).with_name("tune")), "report"]
    files = ["--db", str(database), "--html", str(page)]
    subprocess.run(
        [*command, *files],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=_LIMIT_SECONDS,
    )
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return end - begin, used


def _opened(page: Path) -> None:
    """Print the times of a few openings, each loaded anew."""
    interactive, opened = [], []
    with running_browser() as browser:
        for number in range(OPENINGS):
            browser.open(page, f"?{2 * number}")
            interactive.append(float(browser.value("document.documentElement.dataset.interactive")))
            begin = time.perf_counter()
            drawn = "document.getElementById('kernel').dataset.complete"
            browser.open(page, f"?{2 * number + 1}#k0", drawn)
            opened.append(1e3 * (time.perf_counter() - begin))
    for name, values in (("interactive", interactive), ("kernel", opened)):
        print(f"{name}: {', '.join(f'{value:.0f}' for value in values)} ms")


if __name__ == "__main__":
    main()
