"""The documentation site: Sphinx, with pages in Markdown.

``tox -e docs`` builds the site in build/site.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from configparser import ConfigParser
from enum import Enum
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]

# autodoc looks at the columns of a mixin, and alembic tells what it has loaded.
warnings.filterwarnings("ignore", "Unmanaged access of declarative attribute")
logging.getLogger("alembic").setLevel(logging.WARNING)

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
exclude_patterns = ["_extensions", "internals"]  # the latter is for developers
repository = addresses["Source"]

# Types of other packages, and type variables, have no entry here. What docstrings name must have.
nitpick_ignore_regex = [
    ("py:class", r"[A-Z_]\w*|\w+(\.\w+)+|timedelta|datetime|(async_)?sessionmaker"),
    ("py:exc", "DBAPIError|IntegrityError|InvalidRequestError"),
    ("py:obj", r"typing\.~\w+"),
]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
add_module_names = False
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True

default_role = "literal"  # in docstrings, as in Markdown: `limit` is code

myst_heading_anchors = 4  # headings have the anchors that they have on the repository's pages

smartquotes_action = "q"  # `--option` in a help text keeps its dashes

html_theme = "furo"
html_title = f"{project} {release}"
# Read the Docs builds several versions, and says of each where it is.
html_baseurl = os.environ.get(
    "READTHEDOCS_CANONICAL_URL", f"{addresses['Documentation']}/en/latest/"
)
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False

copybutton_prompt_text = ">>> "


def without_text_of_the_type(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Leave out what Python says of dictionaries, where a page describes a constant."""
    if what == "data":
        lines.clear()


def plain_signature(
    app: Sphinx, what: str, name: str, entry: object, options: object, *given: str | None
) -> tuple[str | None, str | None] | None:
    """Leave out how an enumeration, a protocol, and an exception with a message are made.

    A default that no source can write, such as ``<factory>``, becomes ``...``.
    """
    arguments, returned = given
    if arguments is None:
        return None
    if isinstance(entry, type) and issubclass(entry, Enum):
        return "", None
    if arguments in ("(*arg: Any, **kw: Any)", "(*args, **kwargs)"):
        return "", None
    return re.sub(r"<[\w. ]+>", "...", arguments), returned


def setup(app: Sphinx) -> None:
    # A change of this file makes all pages anew.
    app.add_config_value("conf_py", Path(__file__).read_text(encoding="utf-8"), "env")
    app.connect("autodoc-process-signature", plain_signature)
    app.connect("autodoc-process-docstring", without_text_of_the_type)
    app.add_lexer("mermaid", TextLexer)  # the repository's pages draw these diagrams
