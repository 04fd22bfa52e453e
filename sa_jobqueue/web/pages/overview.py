"""The first page: all queues, a line for each."""

from __future__ import annotations

from starlette.responses import Response

from ..door import Visit
from ..plots import plot


def show_overview(visit: Visit) -> Response:
    """Show how full and how late the queues are."""
    site = visit.site
    seen = site.overview()
    site.samples.look(seen)
    samples = {name: site.samples.of(name) for name in seen}
    plots = {
        name: {
            "due": plot([sample.due for sample in taken]),
            "rate": plot([sample.rate for sample in taken]),
        }
        for name, taken in samples.items()
    }
    missing = [name for name in site.queues if name not in seen]
    return visit.page("overview", seen=seen, plots=plots, missing=missing)
