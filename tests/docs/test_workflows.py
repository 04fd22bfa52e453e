"""The code of docs/workflows.md runs, and draws the page's diagram."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from .markdown import ROOT, code_blocks, page

PAGE = page("docs/workflows.md")

#: What the page leaves to the reader.
LOG = """
class ClipLog(Base):
    __tablename__ = "clip_log"
    id: Mapped[int] = mapped_column(primary_key=True)
    clip_id: Mapped[int]
    before: Mapped[str]
    after: Mapped[str]
"""


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the code of the page from its first line to its last."""
    model, run, signal, note = code_blocks(PAGE, "python")
    script = tmp_path_factory.mktemp("page") / "clips.py"
    script.write_text("\n".join([model, LOG, note, run, signal]), encoding="utf-8")
    return dict(vars(load(script)))


def load(file: Path) -> Any:
    spec = spec_from_file_location(f"page_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)  # annotations are looked up there
    spec.loader.exec_module(module)
    return module


def test_the_code_of_the_page_runs(
    after: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with after["Session"](after["engine"]) as session:
        clips = session.query(after["Clip"]).order_by(after["Clip"].id).all()
        logged = session.query(after["ClipLog"]).count()

    assert [clip.status for clip in clips] == ["published", "rejected"]
    assert logged == 9
    after["hear"](1)
    assert capsys.readouterr().out.endswith("clip 1 is published\n")


def test_the_diagram_is_what_the_code_draws(after: dict[str, Any]) -> None:
    (drawn,) = code_blocks(PAGE, "mermaid")

    assert drawn == after["workflow"].diagram() + "\n"


def test_the_example_is_the_workflow_of_the_page(after: dict[str, Any]) -> None:
    example = load(ROOT / "examples" / "08_render_pipeline.py")

    assert example.workflow.diagram() == after["workflow"].diagram()
    assert example.workflow.arrows == after["workflow"].arrows
