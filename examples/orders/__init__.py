"""A shop that confirms its orders by e-mail: FastAPI, Alembic and a worker in the same process."""
