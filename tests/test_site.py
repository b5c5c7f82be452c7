"""What is done to the pages of the documentation while they are built."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

HOOKS = ROOT / "docs" / "hooks"


def hook(name: str) -> dict[str, Any]:
    """The names of a hook, which needs no package of the site itself."""
    path = HOOKS / f"{name}.py"
    names: dict[str, Any] = {"__name__": name}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script defer src=//cdn.example/x.js></script>",
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link href="https://fonts.example" rel="preconnect">',
        '<img alt="x" src="http://example.org/x.png">',
        '<iframe src="https://example.org"></iframe>',
        '<style>@import "https://example.org/x.css";</style>',
        "<style>a { background: url('https://example.org/x.png') }</style>",
    ],
)
def test_what_a_page_would_load_from_elsewhere_is_found(html: str) -> None:
    assert list(hook("offline")["foreign"](html, ".html"))


@pytest.mark.parametrize(
    "html",
    [
        '<a href="https://example.org">a link that a reader may follow</a>',
        '<script src="assets/x.js"></script>',
        '<link rel="canonical" href="https://example.org/page">',
        '<img src="assets/face.png">',
        "<style>a { background: url(data:image/png;base64,AA==) }</style>",
    ],
)
def test_what_is_of_the_site_is_fine(html: str) -> None:
    assert not list(hook("offline")["foreign"](html, ".html"))


def test_a_site_that_loads_from_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@font-face { src: url(https://example.org/a.woff2) }")
    with pytest.raises(SystemExit, match="example.org"):
        hook("offline")["on_post_build"]({"site_dir": str(tmp_path)})
    (tmp_path / "a.css").write_text("@font-face { src: url(a.woff2) }")
    hook("offline")["on_post_build"]({"site_dir": str(tmp_path)})


def test_no_font_and_no_script_is_asked_for() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)
    assert settings["strict"] == "true"
    assert settings["theme"]["font"] == "false"
    assert "extra_javascript" not in settings


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    assert len(links) > 20
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


def test_every_notebook_has_a_page() -> None:
    pages = (ROOT / "mkdocs.yml").read_text()
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")):
        assert f"tutorials/{path.stem}.md" in pages
        assert json.loads(path.read_text())["cells"][0]["source"][0].startswith("# ")
