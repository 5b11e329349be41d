"""Groups of rollouts: which group a session is an episode of, and the statistics that its samples are measured by.

All are empty for people's chats: their turns are groups of one, judged one by one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("group", sa.Text(), nullable=True))
    op.create_index("ix_sessions_group", "sessions", ["group"])
    op.add_column("samples", sa.Column("baseline", sa.Double(), nullable=True))
    op.add_column("samples", sa.Column("scale", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("samples", "scale")
    op.drop_column("samples", "baseline")
    op.drop_index("ix_sessions_group", table_name="sessions")
    op.drop_column("sessions", "group")
