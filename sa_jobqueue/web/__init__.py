"""The web page: queues, jobs, workers and schedules, to see and to steer. Extra ``web``.

::

    def authorize(request: Request) -> Visitor | None:
        user = request.session.get("user")              # the application's own login
        return Visitor(user, Access.ADMIN) if user else None

    shop.mount("/queues", app(engine, [outbox, reports], authorize=authorize))

It is rendered on the server and works without JavaScript. Nobody sees anything until `authorize`
says so. On the command line: ``sa-jobqueue web shop.queues``. docs/web.md has the rest.

======================  =====================================================
``application``         app: the routes
``visitors``            Visitor, Access: who may see, and who may change
``site``                what the pages share: the engine, the queues, samples and reports
``door``                each request: who asks, from where, what an error looks like, headers
``reading``             transactions that read, with a time limit
``samples``             numbers of the last half hour, taken while somebody looks
``rendering``           templates, and how they write times, numbers and plots
``pages``               what each page shows, and what its buttons do
``local``               the page of the command line: a token, and which hosts are served
======================  =====================================================
"""

from .application import app
from .visitors import Access, Visitor

__all__ = ["Access", "Visitor", "app"]
