"""Every code block of the README and of the documentation runs.

The blocks of a page run in their order, in one directory. Python blocks share their names; a block with a title is
also written to a file of that name. A block of commands runs ``python -m nl_lightning`` and ``python -m replay``. A
comment before a block says what a test does otherwise:

    <!-- test: with --data.rounds 100 -->   the options are added to every command of the block
    <!-- test: skip: needs a cluster -->    the block does not run, for this reason
"""

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pytest
import yaml

import replay.__main__
from nl_lightning.cli.main import main as nl_lightning_main
from replay.logs.schema import Schema
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- test: (?P<mark>.*?) -->\n)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PROGRAMS: dict[str, Callable[[list[str]], Any]] = {"nl_lightning": nl_lightning_main, "replay": replay.__main__.main}


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    title: str | None
    text: str
    mark: str | None

    @property
    def skipped(self) -> bool:
        return self.mark is not None and self.mark.startswith("skip: ")

    @property
    def added(self) -> list[str]:
        """Options that a test adds to every command."""
        return shlex.split(self.mark.removeprefix("with ")) if self.mark and self.mark.startswith("with ") else []


def blocks(page: Path) -> list[Block]:
    return [
        Block(found["language"], found["title"], found["text"], found["mark"])
        for found in BLOCK.finditer(page.read_text())
    ]


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a block, with continued lines joined and comments left out."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def named(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


def newest_run(word: str) -> str:
    """ID stands for the id of the newest run."""
    found = re.fullmatch(r"(runs/[\w-]+)/ID(/.*)?", word)
    if not found:
        return word
    run = max(Path(found[1]).iterdir(), key=lambda path: path.stat().st_mtime)
    return f"{run}{found[2] or ''}"


def run_commands(block: Block) -> None:
    for words in commands(block.text):
        assert words[:2] == ["python", "-m"], f"{shlex.join(words)}: say `<!-- test: skip: why -->`"
        assert not exit_code(words[2], [*map(newest_run, words[3:]), *block.added]), shlex.join(words)


def exit_code(program: str, arguments: list[str]) -> str | int | None:
    try:
        PROGRAMS[program](arguments)
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page is tried out; modules that the page writes can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    with mpl.rc_context({"backend": "agg"}):
        yield tmp_path
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
            del sys.modules[name]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=named)
def test_the_blocks_of_a_page_run(page: Path, directory: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(blocks(page)):
        if block.title:
            (directory / block.title).write_text(block.text)
        if block.skipped:
            continue
        if block.language == "python":
            exec(compile(block.text, f"{named(page)}, block {number}", "exec"), names)
        elif block.language == "sh":
            run_commands(block)
        elif block.language == "yaml":
            content = yaml.safe_load(block.text)
            if "action" in content:
                Schema.from_dict(content)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_says_what_it_is(page: Path) -> None:
    text = page.read_text()
    assert text.count("\n```") == 2 * len(blocks(page)), "a fence is not closed, or is indented"
    for block in blocks(page):
        assert block.language in ("python", "sh", "yaml", "text"), "text is for output, everything else runs"
        assert block.mark is None or re.match(r"skip: \w|with --", block.mark), block.mark
    marks = len(re.findall("<!-- test: ", text))
    assert marks == sum(block.mark is not None for block in blocks(page)), "a mark stands right before its block"


def test_a_block_that_is_wrong_fails(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(AssertionError, match="skip"):
        run_commands(Block("sh", None, "make run", None))
    with pytest.raises(AssertionError):
        run_commands(Block("sh", None, "python -m replay info nowhere", None))


def test_the_readme_is_short_and_has_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 180
    assert "make run" in text
    assert "make test" in text
