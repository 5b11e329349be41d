"""Pruned policy versions: a state for those whose weights were removed from the disk, and the mark against that."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

CHECK = "ck_policies_state"
BEFORE = "state IN ('candidate', 'serving', 'retired', 'rejected')"
AFTER = "state IN ('candidate', 'serving', 'retired', 'rejected', 'pruned')"


def upgrade() -> None:
    op.add_column("policies", sa.Column("pinned", sa.Boolean(), server_default=sa.false(), nullable=False))
    _replace_check(AFTER)


def downgrade() -> None:
    op.execute("UPDATE policies SET state = 'rejected', reason = 'pruned' WHERE state = 'pruned'")
    _replace_check(BEFORE)
    op.drop_column("policies", "pinned")


def _replace_check(states: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint(op.f(CHECK), "policies")
        op.create_check_constraint(op.f(CHECK), "policies", states)
        return
    # SQLite changes no constraint: Alembic copies the rows into a table made anew.
    with op.batch_alter_table("policies", recreate="always", copy_from=_make_table(states)):
        pass


def _make_table(states: str) -> sa.Table:
    """The table in full: of one that is read back, libraries differ in which constraints they see."""
    return sa.Table(
        "policies",
        sa.MetaData(),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("pinned", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.CheckConstraint("kind IN ('base', 'adapter', 'full')", name=op.f("ck_policies_kind")),
        sa.CheckConstraint(states, name=op.f(CHECK)),
        sa.ForeignKeyConstraint(["parent"], ["policies.version"], name=op.f("fk_policies_parent")),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_policies")),
        sa.Index(op.f("uq_policies_serving"), "state", unique=True, sqlite_where=sa.text("state = 'serving'")),
    )
