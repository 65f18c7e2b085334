"""How Alembic runs the migrations: on the connection that it is given, inside the transaction of that."""

from alembic import context

context.configure(**context.config.attributes)
context.run_migrations()
