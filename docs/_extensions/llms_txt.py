"""Write ``llms.txt`` to the site's root: what the site is, and a line for each page."""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

#: A longer description ends after the sentence that passes this many characters.
ENOUGH = 40


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write_llms_txt)
    return {"parallel_read_safe": True}


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        text = llms_txt(app.env, app.config.html_baseurl)
        (Path(app.outdir) / "llms.txt").write_text(text, encoding="utf-8")


def llms_txt(env: BuildEnvironment, address: str) -> str:
    """Return the pages of the first page's toctrees, by their captions."""
    first = env.config.root_doc
    lines = [f"# {env.titles[first].astext()}", "", f"> {description(env, first)}"]
    for tree in env.get_doctree(first).findall(addnodes.toctree):
        lines += ["", f"## {tree['caption']}", ""]
        lines += [line(env, page, address) for page in with_subpages(env, tree["includefiles"])]
    return "\n".join(lines) + "\n"


def with_subpages(env: BuildEnvironment, pages: list[str]) -> list[str]:
    """Return pages, each followed by the pages of its own toctree."""
    found = []
    for page in pages:
        found += [page, *with_subpages(env, env.toctree_includes.get(page, []))]
    return found


def line(env: BuildEnvironment, page: str, address: str) -> str:
    title = env.titles[page].astext()
    return f"- [{title}]({address}{page}.html): {description(env, page)}"


def description(env: BuildEnvironment, page: str) -> str:
    """Return the first sentences of a page."""
    for paragraph in env.get_doctree(page).findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section):
            return first_sentences(" ".join(paragraph.astext().split()))
    return ""


def first_sentences(text: str) -> str:
    end = text.find(". ", ENOUGH)
    return text if end < 0 else text[: end + 1]
