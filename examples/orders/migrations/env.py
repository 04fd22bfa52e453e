"""Alembic's environment: the connection comes from the one who runs the migration."""

from alembic import context
from orders.models import Base

with context.config.attributes["engine"].connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
