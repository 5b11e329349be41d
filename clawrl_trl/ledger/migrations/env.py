"""Alembic's hook: run the migrations on the connection that the ledger hands over, in its transaction."""

from alembic import context

from clawrl_trl.ledger.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
context.run_migrations()
