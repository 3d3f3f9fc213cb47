"""How Sphinx builds the documentation: `make docs`. It needs no network."""

import os
import re
from pathlib import Path

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
exclude_patterns = ["_build"]
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
#: A line of a table of contents that names all pages of a folder.
_FOLDER = re.compile(r"^([\w-]+)/\*\n", re.MULTILINE)
#: Files under docs/ that the site has.
_PAGES = {".md", ".svg", ".png"}


def setup(app: Sphinx) -> None:
    """Connect what is below."""
    app.connect("source-read", _prepare)


def _prepare(_app: Sphinx, page: str, source: list[str]) -> None:
    folder = DOCS.joinpath(page).parent
    source[0] = _LINK.sub(lambda match: match[1] + _target(folder, match[2]), source[0])
    if page == "index":
        # Sphinx warns of folders that are empty or not there.
        source[0] = _FOLDER.sub(lambda found: found[0] if _has_pages(found[1]) else "", source[0])


def _has_pages(folder: str) -> bool:
    return any(DOCS.joinpath(folder).glob("*.md"))


def _target(folder: Path, link: str) -> str:
    """Return what a link is on the site: files that are no page of it are in the repository."""
    path = Path(os.path.normpath(folder / link))
    if not path.exists() or (path.is_relative_to(DOCS) and path.suffix in _PAGES):
        return link
    kind = "tree" if path.is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/{BRANCH}/{path.relative_to(DOCS.parent).as_posix()}"
