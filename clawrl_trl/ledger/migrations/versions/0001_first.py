"""The first schema: sessions, turns, feedback, verdicts, samples, batches, policies, events.

Version 0 of the policy, the base model, is there from the start and serves.
"""

import time

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_events_kind"), "events", ["kind"])
    op.create_index(op.f("ix_events_subject"), "events", ["subject"])

    op.create_table(
        "policies",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.CheckConstraint("kind IN ('base', 'adapter', 'full')", name=op.f("ck_policies_kind")),
        sa.CheckConstraint("state IN ('candidate', 'serving', 'retired', 'rejected')", name=op.f("ck_policies_state")),
        sa.ForeignKeyConstraint(["parent"], ["policies.version"], name=op.f("fk_policies_parent")),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_policies")),
    )
    op.create_index(
        op.f("uq_policies_serving"),
        "policies",
        ["state"],
        unique=True,
        sqlite_where=sa.text("state = 'serving'"),
        postgresql_where=sa.text("state = 'serving'"),
    )

    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("external_id", sa.Text(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("identity_source", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.Column("done", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("owner", "external_id", name=op.f("uq_sessions_owner_external_id")),
    )
    op.create_index(op.f("ix_sessions_last_at"), "sessions", ["last_at"])

    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("sample_ids", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("needs", sa.JSON(), nullable=False),
        sa.Column("trained_into", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("trained_at", sa.Double(), nullable=True),
        sa.CheckConstraint("(trained_into IS NOT NULL) = (state = 'trained')", name=op.f("ck_batches_trained")),
        sa.CheckConstraint("state IN ('leased', 'trained', 'released')", name=op.f("ck_batches_state")),
        sa.ForeignKeyConstraint(["trained_into"], ["policies.version"], name=op.f("fk_batches_trained_into")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_batches_idempotency_key")),
    )
    op.create_index(op.f("ix_batches_state"), "batches", ["state"])

    op.create_table(
        "turns",
        sa.Column("seq", SERIAL, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("completion_id", sa.Text(), nullable=False),
        sa.Column("choice_index", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("kind_reason", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("messages", sa.LargeBinary(), nullable=False),
        sa.Column("tools", sa.LargeBinary(), nullable=True),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=True),
        sa.Column("completion_ids", sa.LargeBinary(), nullable=True),
        sa.Column("logprobs", sa.LargeBinary(), nullable=True),
        sa.Column("trainable", sa.Boolean(), nullable=False),
        sa.Column("untrainable_reason", sa.Text(), nullable=True),
        sa.Column("policy_version", sa.Integer(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("timings", sa.JSON(), nullable=False),
        sa.Column("usage", sa.JSON(), nullable=False),
        sa.Column("next_state", sa.LargeBinary(), nullable=True),
        sa.Column("next_state_provenance", sa.JSON(), nullable=True),
        sa.Column("next_turn_id", sa.Text(), nullable=True),
        sa.Column("next_state_at", sa.Double(), nullable=True),
        sa.Column("judge_attempts", sa.Integer(), nullable=False),
        sa.Column("judge_after", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.CheckConstraint("kind = 'main' OR (kind = 'side' AND state = 'captured')", name=op.f("ck_turns_kind")),
        sa.CheckConstraint(
            "state IN ('captured', 'awaiting_next_state', 'expired', 'judging', 'judged')",
            name=op.f("ck_turns_state"),
        ),
        sa.CheckConstraint(
            "NOT trainable OR (prompt_ids IS NOT NULL AND policy_version IS NOT NULL"
            " AND completion_ids IS NOT NULL AND logprobs IS NOT NULL"
            " AND length(completion_ids) > 0 AND length(completion_ids) = length(logprobs))",
            name=op.f("ck_turns_trainable"),
        ),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_turns_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_turns")),
        sa.UniqueConstraint("completion_id", "choice_index", name=op.f("uq_turns_completion_id_choice_index")),
        sa.UniqueConstraint("id", name=op.f("uq_turns_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_turns_session_id_seq"), "turns", ["session_id", "seq"])
    op.create_index(op.f("ix_turns_state_judge_after"), "turns", ["state", "judge_after"])

    op.create_table(
        "feedback",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.CheckConstraint("kind IN ('thumbs', 'text', 'correction', 'outcome')", name=op.f("ck_feedback_kind")),
        sa.CheckConstraint("value IS NOT NULL OR text IS NOT NULL", name=op.f("ck_feedback_content")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_feedback_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feedback")),
    )
    op.create_index(op.f("ix_feedback_turn_id"), "feedback", ["turn_id"])

    op.create_table(
        "samples",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("teacher_logprobs", sa.LargeBinary(), nullable=True),
        sa.Column("plain_logprobs", sa.LargeBinary(), nullable=True),
        sa.Column("group", sa.Text(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.CheckConstraint("(batch_id IS NOT NULL) = (state IN ('leased', 'trained'))", name=op.f("ck_samples_batch")),
        sa.CheckConstraint("state IN ('ready', 'leased', 'trained', 'dropped')", name=op.f("ck_samples_state")),
        sa.CheckConstraint("(teacher_logprobs IS NULL) = (plain_logprobs IS NULL)", name=op.f("ck_samples_teacher")),
        sa.CheckConstraint(
            "teacher_logprobs IS NULL OR length(teacher_logprobs) = length(plain_logprobs)",
            name=op.f("ck_samples_lengths"),
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_samples_batch_id")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_samples_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_samples")),
        sa.UniqueConstraint("turn_id", name=op.f("uq_samples_turn_id")),
    )
    op.create_index(op.f("ix_samples_batch_id"), "samples", ["batch_id"])
    op.create_index(op.f("ix_samples_state_created_at"), "samples", ["state", "created_at"])

    op.create_table(
        "verdicts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("judge", sa.Text(), nullable=False),
        sa.Column("votes", sa.JSON(), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("hint", sa.Text(), nullable=True),
        sa.Column("hint_source", sa.Text(), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_verdicts_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
        sa.UniqueConstraint("turn_id", name=op.f("uq_verdicts_turn_id")),
    )
    policies = sa.table(
        "policies",
        sa.column("metrics", sa.JSON()),
        *map(sa.column, ("version", "kind", "state", "created_at")),
    )
    base = {"version": 0, "kind": "base", "state": "serving", "metrics": {}, "created_at": time.time()}
    op.bulk_insert(policies, [base])


def downgrade() -> None:
    for table in ("verdicts", "samples", "feedback", "turns", "batches", "sessions", "policies", "events"):
        op.drop_table(table)
