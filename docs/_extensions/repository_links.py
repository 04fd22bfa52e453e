"""A link from a page to a file that is no page of the site leads to the repository.

``[an example](../examples/05_mailing.py)`` and ``[the model](internals/model.md)`` work in a
checkout and on the repository's pages. On the site it becomes the file's address. A link to a
file that does not exist is a warning.
"""

from __future__ import annotations

import os
import re

from sphinx.application import Sphinx
from sphinx.util import logging

#: A link of Markdown whose target begins with ``../`` or ``internals/``; an image is none.
LINK = re.compile(
    r"(?<!!)(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>(?:\.\.|internals)/[^)\s]+)\)"
)

log = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("repository", "", "env")
    app.connect("source-read", lead_to_repository)
    return {"parallel_read_safe": True}


def lead_to_repository(app: Sphinx, page: str, content: list[str]) -> None:
    def link(found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        path = os.path.normpath(os.path.join("docs", os.path.dirname(page), target))
        if path.startswith("docs/") and not path.startswith("docs/internals/"):
            return found[0]
        if not os.path.exists(os.path.join(app.confdir, "..", path)):
            log.warning("a link to a file that does not exist: %s", target, location=page)
        address = f"{app.config.repository}/blob/main/{path}"
        return f"{found['text']}({address}{anchor and '#' + anchor})"

    content[0] = LINK.sub(link, content[0])
