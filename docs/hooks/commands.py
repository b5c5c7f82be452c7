"""Puts the help of a command into a page, where it says ``<!-- help: python -m replay info -->``."""

import os
import re
import subprocess
import sys
from functools import lru_cache
from typing import Any

__all__ = ["help_text", "on_page_markdown"]

_MARKER = re.compile(r"^<!-- help: python (-m [a-z_]+(?: [a-z]+)?) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of a page."""
    return _MARKER.sub(lambda found: f"```text\n{help_text(found.group(1))}\n```", markdown)


@lru_cache
def help_text(command: str) -> str:
    """What ``python COMMAND --help`` prints. A command that fails is an error."""
    asked = [sys.executable, *command.split(), "--help"]
    # a fixed width and no colours, wherever the site is built
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(asked, capture_output=True, text=True, check=True, env=environment).stdout.rstrip()
