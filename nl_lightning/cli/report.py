"""``report``: one HTML page from runs."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from nl_lightning.core.arguments import OneLineParser, program
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.reporting import page
from nl_lightning.reporting.discovery import find
from nl_lightning.reporting.page_data import gather, read_entries

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """``report PATHS... [--out FILE] [--title TEXT]``"""
    parser = OneLineParser(prog=f"{program('nl_lightning')} report", description=page.__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="directories of runs, or above them")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the page (default: %(default)s)")
    parser.add_argument("--title", help="of the page; default: the names of the directories")
    options = parser.parse_args(arguments)
    found = find(options.paths)
    out: Path = options.out
    if out.is_dir():
        raise InputError(f"--out must be a file, and {out} is a directory. Give {out / 'report.html'}, for example.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out must be a file in a directory that can be made and written; {out.parent}: {error.strerror}. "
            "Choose another one."
        ) from error
    title = options.title or ", ".join(path.resolve().name for path in options.paths)
    terminal = Console(stderr=True)
    progress = track(found.runs, "Reading", console=terminal, transient=True, disable=not terminal.is_terminal)
    entries = [entry for run in progress for entry in read_entries(run)]
    text = page.render(gather(title, found.runs, entries, found.left_out))
    write_beside(out, lambda path: path.write_text(text, encoding="utf-8"))
    console = Console()
    for line in found.left_out:
        console.print(f"Left out: {line}.", soft_wrap=True, markup=False)
    runs = "1 run" if len(found.runs) == 1 else f"{len(found.runs)} runs"
    console.print(f"{runs} in {out}", soft_wrap=True, markup=False)
