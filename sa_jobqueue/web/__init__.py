"""The web page: queues, jobs, workers and schedules, to see and to steer. Extra ``web``.

::

    def authorize(request: Request) -> Visitor | None:
        user = request.session.get("user")              # the application's own login
        return Visitor(user, Access.ADMIN) if user else None

    shop.mount("/queues", app(engine, [outbox, reports], authorize=authorize))

It is rendered on the server and works without JavaScript. Nobody sees anything until `authorize`
says so. On the command line: ``sa-jobqueue web shop.queues``. docs/web.md has the rest.

======================  =====================================================
``application``         app: the routes; the page of the command line, with a token
``door``                each request: who asks, from where, what an error looks like, headers
``site``                what the pages share: the engine, the queues, samples and reports
``pages``               what each page shows
``actions``             what its buttons do, and the page of schedules
``rendering``           templates, how they write times and plots; reads with a time limit
======================  =====================================================
"""

from .application import app
from .door import Access, Visitor

__all__ = ["Access", "Visitor", "app"]
