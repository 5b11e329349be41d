"""Per-token facts: the policy version of each token, and the teacher's view of several candidates per token.

Both are empty in rows written before, which is what they mean there: one version for the whole reply, and no
candidates beside the sampled tokens.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("token_versions", sa.LargeBinary(), nullable=True))
    op.add_column("samples", sa.Column("topk_ids", sa.LargeBinary(), nullable=True))
    op.add_column("samples", sa.Column("topk_logprobs", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("samples", "topk_logprobs")
    op.drop_column("samples", "topk_ids")
    op.drop_column("turns", "token_versions")
