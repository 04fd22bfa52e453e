"""The documentation site: Sphinx, with pages in Markdown.

``tox -e docs`` builds the site in build/site.
"""

from __future__ import annotations

import sys
from configparser import ConfigParser
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]

from sa_jobqueue import __version__  # noqa: E402 - the checkout's package, by the line above

setup_cfg = ConfigParser()
setup_cfg.read(HERE.parent / "setup.cfg", encoding="utf-8")
metadata = setup_cfg["metadata"]
addresses = dict(line.split(" = ") for line in metadata["project_urls"].strip().splitlines())

project, author = metadata["name"], metadata["author"]
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "llms_txt",
    "repository_links",
]
exclude_patterns = ["_extensions"]
repository = addresses["Source"]

myst_heading_anchors = 4  # headings have the anchors that they have on the repository's pages

html_theme = "furo"
html_title = f"{project} {release}"
html_baseurl = addresses["Documentation"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False

copybutton_prompt_text = ">>> "


def setup(app: Sphinx) -> None:
    app.add_lexer("mermaid", TextLexer)  # the repository's pages draw these diagrams
