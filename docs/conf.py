"""How Sphinx builds the documentation: `make docs`. It needs no network."""

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

import scrapy_bloom

DOCS = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/scrapy-bloom/scrapy-bloom"
#: The branch or tag whose files the site links: Read the Docs says which version it builds.
BRANCH = os.environ.get("READTHEDOCS_GIT_IDENTIFIER", "main")

project = "scrapy-bloom"
author = "the scrapy-bloom developers"
copyright = f"{author}, BSD-3-Clause"  # noqa: A001 - Sphinx's name
version = release = scrapy_bloom.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "index"
highlight_language = "text"
# Developers read these two in the repository.
exclude_patterns = ["_build", "architecture.md", "design.md"]
python_maximum_signature_line_length = 88

# Anchors are those of GitHub, where the pages are read as well.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
html_title = f"scrapy-bloom {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": f"{REPOSITORY}/",
    "source_branch": BRANCH,
    "source_directory": "docs/",
}
# Prompts are not copied.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

#: A link to a file: `](path)`, or `[name]: path`; no address, no anchor of its own page.
_LINK = re.compile(r"(\]\(|^\[[^]\n]+\]: )(?![a-z+]+:|#)([^)\s#]+)", re.MULTILINE)
#: A block of the log, whose lines are wrapped. GitHub hides the comment before it.
_LOG = re.compile(r"^<!-- (?:log|wrap) -->\n```(\w+)\n", re.MULTILINE)
#: A list of links that are shown as buttons.
_BUTTONS = re.compile(r"^<!-- buttons -->\n((?:- .*\n)+)", re.MULTILINE)
#: Files under docs/ that the site has.
_PAGES = {".md", ".svg", ".png"}
#: The style of a picture: what holds always, and what holds in dark mode.
_STYLE = re.compile(
    r"<style>(.*?)@media \(prefers-color-scheme: dark\) \{(.*)\}\s*</style>", re.DOTALL
)


def setup(app: Sphinx) -> None:
    """Connect what is below."""
    app.connect("source-read", _prepare)
    app.connect("doctree-resolved", _draw)
    app.connect("autodoc-process-signature", _unwrap)


def _prepare(_app: Sphinx, page: str, source: list[str]) -> None:
    folder = DOCS.joinpath(page).parent
    text = _LINK.sub(lambda match: match[1] + _target(folder, match[2]), source[0])
    text = _BUTTONS.sub(r"```{container} buttons\n\1```\n", text)
    source[0] = _LOG.sub(r"```{code-block} \1\n:class: wrap\n\n", text)


def _target(folder: Path, link: str) -> str:
    """Return what a link is on the site: files that are no page of it are in the repository."""
    path = Path(os.path.normpath(folder / link))
    is_on_site = path.is_relative_to(DOCS) and path.name not in exclude_patterns
    if not path.exists() or (is_on_site and path.suffix in _PAGES):
        return link
    kind = "tree" if path.is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/{BRANCH}/{path.relative_to(DOCS.parent).as_posix()}"


def _draw(_app: Sphinx, tree: nodes.document, _page: str) -> None:
    """Put pictures into the page itself, where they follow the site's switch for dark mode."""
    for image in list(tree.findall(nodes.image)):
        path = DOCS / image["uri"]
        if path.suffix == ".svg" and _STYLE.search(text := path.read_text("utf-8")):
            style = _STYLE.sub(lambda found, name=path.stem: _switched(name, *found.groups()), text)
            drawn = style.replace("<svg ", f'<svg class="picture {path.stem}" ', 1)
            drawn = f'<div class="picture-frame">{drawn}</div>'
            image.replace_self(nodes.raw("", drawn, format="html"))


def _switched(name: str, always: str, dark: str) -> str:
    """Return a style that holds in one picture, and is dark when Furo's switch says so."""
    switched = f"body[data-theme=dark] .{name} {{ {dark} }}"
    asked = f"body:not([data-theme=light]) .{name} {{ {dark} }}"
    asked = f"@media (prefers-color-scheme: dark) {{ {asked} }}"
    return f"<style>.{name} {{ {always} }} {switched} {asked}</style>"


def _unwrap(*event: Any) -> tuple[str, str] | None:
    """Return the signature of a method of filters, which is written as a generator, to callers."""
    *_, signature, result = event
    found = re.search(r"Generator\[list\[.*?Call], list\[.*?Reply], (.*)]$", f"{result}", re.DOTALL)
    return (signature, found[1]) if found else None
