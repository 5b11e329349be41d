"""The ledger's tables as row classes, with their constraints.

Rows are dataclasses with keyword arguments; ids are text that sorts by time; times are unix seconds. The database
itself holds the invariants: states move by their transition table, a trainable turn has one log-prob
for each of its tokens, a sample in a batch names it, one policy serves. Rows hold people's messages, so their
`repr` shows an id and nothing else.
"""

import json
import time
from typing import Any, ClassVar, dataclass_transform

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, MetaData, UniqueConstraint, false, text
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from clawrl_trl.ledger import states
from clawrl_trl.ledger.columns import (
    PLAIN_JSON,
    SERIAL,
    FloatArray,
    Floats,
    IdArray,
    Ids,
    LongJSON,
    SharedIds,
    SharedJSON,
    StorableText,
    make_id_column,
    new_id,
)
from clawrl_trl.ledger.digests import encode_array, hash_parts
from clawrl_trl.messages import Json

REVISION = "0005"
"""The schema's version: the newest migration that this code knows."""

Message = Json
"""A chat message in OpenAI's shape."""


def _check_state(column: str, table: states.Table) -> str:
    """The CHECK that a column holds a state of its table."""
    return f"{column} IN ({', '.join(repr(name) for name in states.names(table))})"


@dataclass_transform(field_specifiers=(mapped_column,), kw_only_default=True)
class Base(MappedAsDataclass, DeclarativeBase, kw_only=True, repr=False, eq=False):
    """Base class of all rows."""

    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_N_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: StorableText,
        dict[str, Any]: PLAIN_JSON,
        list[str]: PLAIN_JSON,
        list[Json]: PLAIN_JSON,
    }

    def __repr__(self) -> str:
        identity = self.__mapper__.primary_key_from_instance(self)
        return f"<{type(self).__name__} {' '.join(map(str, identity))}>"


class _Stateful(Base):
    """A row whose `state` is born in the first state of its table, so that every later move is checked."""

    __abstract__ = True
    transitions: ClassVar[states.Table]

    def __post_init__(self) -> None:
        if "state" not in self.__dict__:
            self.state = states.names(self.transitions)[0]


class Session(Base):
    """A conversation. `owner` is the fingerprint of the API key; sessions of two owners never join.

    `group` names the rollouts of one task that it is compared with; people's chats have none.
    """

    __tablename__ = "sessions"
    __table_args__ = (UniqueConstraint("owner", "external_id"),)

    id: Mapped[str] = make_id_column("session")
    external_id: Mapped[str | None] = mapped_column(default=None)
    owner: Mapped[str] = mapped_column(default="local")
    identity_source: Mapped[str] = mapped_column(default="header")
    started_at: Mapped[float] = mapped_column(default_factory=time.time)
    last_at: Mapped[float] = mapped_column(default_factory=time.time, index=True)
    done: Mapped[bool] = mapped_column(default=False)
    group: Mapped[str | None] = mapped_column(default=None, index=True)


class Turn(_Stateful):
    """One reply of the model: what it was asked, what it sampled, and what came after.

    `prompt_ids` and `completion_ids` are what the engine reported, never text tokenised again; `logprobs[i]`
    is the log-probability with which `completion_ids[i]` was sampled, after temperature and truncation.
    `token_versions[i]` is the policy version that sampled it, where an update in place fell into the reply;
    elsewhere it is empty and `policy_version` holds for every token.
    """

    __tablename__ = "turns"
    transitions = states.TURN
    __table_args__ = (
        UniqueConstraint("completion_id", "choice_index"),
        CheckConstraint(_check_state("state", states.TURN), name="state"),
        # A side turn that reached the judge would be trained on.
        CheckConstraint("kind = 'main' OR (kind = 'side' AND state = 'captured')", name="kind"),
        CheckConstraint(
            "NOT trainable OR (prompt_ids IS NOT NULL AND policy_version IS NOT NULL"
            " AND completion_ids IS NOT NULL AND logprobs IS NOT NULL"
            " AND length(completion_ids) > 0 AND length(completion_ids) = length(logprobs))",
            name="trainable",
        ),
        Index("ix_turns_state_judge_after", "state", "judge_after"),
        Index("ix_turns_session_id_seq", "session_id", "seq"),
        {"sqlite_autoincrement": True},
    )

    seq: Mapped[int] = mapped_column(SERIAL, primary_key=True, autoincrement=True, init=False)
    id: Mapped[str] = mapped_column(unique=True, default_factory=lambda: new_id("turn"))
    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    parent_id: Mapped[str | None] = mapped_column(default=None)
    completion_id: Mapped[str]
    choice_index: Mapped[int] = mapped_column(default=0)
    kind: Mapped[str] = mapped_column(default="main")
    kind_reason: Mapped[str] = mapped_column(default="")
    state: Mapped[str] = mapped_column(default="captured")
    messages: Mapped[list[Message]] = mapped_column(SharedJSON)
    tools: Mapped[list[Json] | None] = mapped_column(SharedJSON, default=None)
    provenance: Mapped[list[str]] = mapped_column(default_factory=list)
    sampling: Mapped[Json] = mapped_column(default_factory=dict)
    response: Mapped[Message] = mapped_column(LongJSON)
    finish_reason: Mapped[str] = mapped_column(default="stop")
    prompt_ids: Mapped[Ids | None] = mapped_column(SharedIds, default=None)
    completion_ids: Mapped[Ids | None] = mapped_column(IdArray, default=None)
    logprobs: Mapped[Floats | None] = mapped_column(FloatArray, default=None)
    trainable: Mapped[bool] = mapped_column(default=False)
    untrainable_reason: Mapped[str | None] = mapped_column(default=None)
    policy_version: Mapped[int | None] = mapped_column(default=None)
    token_versions: Mapped[Ids | None] = mapped_column(IdArray, default=None)
    model: Mapped[str] = mapped_column(default="")
    engine: Mapped[str] = mapped_column(default="")
    timings: Mapped[Json] = mapped_column(default_factory=dict)
    usage: Mapped[Json] = mapped_column(default_factory=dict)
    next_state: Mapped[list[Message] | None] = mapped_column(LongJSON, default=None)
    next_state_provenance: Mapped[list[str] | None] = mapped_column(PLAIN_JSON, default=None)
    next_turn_id: Mapped[str | None] = mapped_column(default=None)
    next_state_at: Mapped[float | None] = mapped_column(default=None)
    judge_attempts: Mapped[int] = mapped_column(default=0)
    judge_after: Mapped[float] = mapped_column(default=0.0)
    created_at: Mapped[float] = mapped_column(default_factory=time.time)
    digest: Mapped[str] = mapped_column(default="")

    __mapper_args__ = {"primary_key": [id], "eager_defaults": True}  # noqa: RUF012 - SQLAlchemy's name

    def compute_digest(self) -> str:
        """sha256 over what was sampled: ids, log-probs, policy version and response."""
        arrays = [
            encode_array(self.prompt_ids, "<i4"),
            encode_array(self.completion_ids, "<i4"),
            encode_array(self.logprobs, "<f4"),
        ]
        # Left out where it is empty: digests of turns from before this column hold on.
        if self.token_versions is not None:
            arrays.append(encode_array(self.token_versions, "<i4"))
        facts = json.dumps([self.policy_version, self.response], sort_keys=True, separators=(",", ":"))
        return hash_parts((*arrays, facts.encode()))


class Piece(Base):
    """A part of what the turns of a session have in common: a message, a tool or a chunk of token ids, compressed.

    `parent_id` is the piece before it, empty for the first of a chain. `ledger.pieces` has the form.
    """

    __tablename__ = "pieces"

    id: Mapped[str] = mapped_column(primary_key=True)
    parent_id: Mapped[str] = mapped_column(default="")
    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"), index=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class Feedback(Base):
    """Something said about a turn on purpose: thumbs (`value`), free text, a correction, an outcome."""

    __tablename__ = "feedback"
    __table_args__ = (
        CheckConstraint("kind IN ('thumbs', 'text', 'correction', 'outcome')", name="kind"),
        CheckConstraint("value IS NOT NULL OR text IS NOT NULL", name="content"),
    )

    id: Mapped[str] = make_id_column("feedback")
    turn_id: Mapped[str] = mapped_column(ForeignKey("turns.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]
    value: Mapped[float | None] = mapped_column(default=None)
    text: Mapped[str | None] = mapped_column(default=None)
    who: Mapped[str] = mapped_column(default="local")
    created_at: Mapped[float] = mapped_column(default_factory=time.time)


class Verdict(Base):
    """The judge's decision on a turn. `score` is `None` when it abstained."""

    __tablename__ = "verdicts"

    id: Mapped[str] = make_id_column("verdict")
    turn_id: Mapped[str] = mapped_column(ForeignKey("turns.id", ondelete="CASCADE"), unique=True)
    judge: Mapped[str]
    votes: Mapped[list[Json]] = mapped_column(default_factory=list)
    score: Mapped[float | None] = mapped_column(default=None)
    hint: Mapped[str | None] = mapped_column(default=None)
    hint_source: Mapped[str | None] = mapped_column(default=None)
    detail: Mapped[Json] = mapped_column(default_factory=dict)
    created_at: Mapped[float] = mapped_column(default_factory=time.time)


class Sample(_Stateful):
    """The ingredients of one turn's training signal.

    `teacher_logprobs` and `plain_logprobs` are as long as the turn's completion. `topk_ids` and `topk_logprobs` hold
    K candidates for each of its tokens, row by row, and the teacher's log-probs of them. `baseline` and `scale` are
    the mean and the standard deviation of the scores it is compared with, where its group has more than one.
    """

    __tablename__ = "samples"
    transitions = states.SAMPLE
    __table_args__ = (
        CheckConstraint(_check_state("state", states.SAMPLE), name="state"),
        CheckConstraint("(batch_id IS NOT NULL) = (state IN ('leased', 'trained'))", name="batch"),
        CheckConstraint("(teacher_logprobs IS NULL) = (plain_logprobs IS NULL)", name="teacher"),
        CheckConstraint(
            "teacher_logprobs IS NULL OR length(teacher_logprobs) = length(plain_logprobs)", name="lengths"
        ),
        Index("ix_samples_state_created_at", "state", "created_at"),
    )

    id: Mapped[str] = make_id_column("sample")
    turn_id: Mapped[str] = mapped_column(ForeignKey("turns.id", ondelete="CASCADE"), unique=True)
    state: Mapped[str] = mapped_column(default="ready")
    reason: Mapped[str | None] = mapped_column(default=None)
    score: Mapped[float | None] = mapped_column(default=None)
    teacher_logprobs: Mapped[Floats | None] = mapped_column(FloatArray, default=None)
    plain_logprobs: Mapped[Floats | None] = mapped_column(FloatArray, default=None)
    topk_ids: Mapped[Ids | None] = mapped_column(IdArray, default=None)
    topk_logprobs: Mapped[Floats | None] = mapped_column(FloatArray, default=None)
    group: Mapped[str | None] = mapped_column(default=None)
    baseline: Mapped[float | None] = mapped_column(default=None)
    scale: Mapped[float | None] = mapped_column(default=None)
    weight: Mapped[float] = mapped_column(default=1.0)
    policy_version: Mapped[int]
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batches.id"), default=None, index=True)
    created_at: Mapped[float] = mapped_column(default_factory=time.time)

    def content(self, turn: Turn) -> bytes:
        """The bytes that a batch's digest is taken over: the ingredients and what the turn sampled."""
        # A row that is not flushed yet may hold an int, and 1 and 1.0 are different JSON.
        score = None if self.score is None else float(self.score)
        facts = [self.id, score, self.group, float(self.weight), self.policy_version, turn.compute_digest()]
        # As above: what is not there must not change the digests of older batches.
        if self.baseline is not None:
            facts += [self.baseline, self.scale]
        arrays = [encode_array(self.teacher_logprobs, "<f4"), encode_array(self.plain_logprobs, "<f4")]
        if self.topk_ids is not None:
            arrays += [encode_array(self.topk_ids, "<i4"), encode_array(self.topk_logprobs, "<f4")]
        return hash_parts((json.dumps(facts).encode(), *arrays)).encode()


class Batch(_Stateful):
    """Samples that are trained together; its content never changes, and the digest proves it."""

    __tablename__ = "batches"
    transitions = states.BATCH
    __table_args__ = (
        CheckConstraint(_check_state("state", states.BATCH), name="state"),
        CheckConstraint("(trained_into IS NOT NULL) = (state = 'trained')", name="trained"),
        Index("ix_batches_state", "state"),
    )

    id: Mapped[str] = make_id_column("batch")
    idempotency_key: Mapped[str] = mapped_column(unique=True)
    digest: Mapped[str]
    sample_ids: Mapped[list[str]]
    state: Mapped[str] = mapped_column(default="leased")
    needs: Mapped[list[str]] = mapped_column(default_factory=list)
    trained_into: Mapped[int | None] = mapped_column(ForeignKey("policies.version"), default=None)
    created_at: Mapped[float] = mapped_column(default_factory=time.time)
    trained_at: Mapped[float | None] = mapped_column(default=None)


class Policy(_Stateful):
    """A version of the policy. Immutable but for its state; version 0 is the base model.

    `pinned` keeps its files from being pruned; of a pruned version whose files are gone `path` is empty.
    """

    __tablename__ = "policies"
    transitions = states.POLICY
    __table_args__ = (
        CheckConstraint(_check_state("state", states.POLICY), name="state"),
        CheckConstraint("kind IN ('base', 'adapter', 'full')", name="kind"),
        Index(
            "uq_policies_serving",
            "state",
            unique=True,
            sqlite_where=text("state = 'serving'"),
            postgresql_where=text("state = 'serving'"),
        ),
    )

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    parent: Mapped[int | None] = mapped_column(ForeignKey("policies.version"), default=None)
    path: Mapped[str | None] = mapped_column(default=None)
    sha256: Mapped[str | None] = mapped_column(default=None)
    kind: Mapped[str] = mapped_column(default="adapter")
    state: Mapped[str] = mapped_column(default="candidate")
    reason: Mapped[str | None] = mapped_column(default=None)
    metrics: Mapped[Json] = mapped_column(default_factory=dict)
    created_at: Mapped[float] = mapped_column(default_factory=time.time)
    pinned: Mapped[bool] = mapped_column(default=False, server_default=false())


class Event(Base):
    """Something worth knowing later; never the text of a message."""

    __tablename__ = "events"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(SERIAL, primary_key=True, autoincrement=True, init=False)
    at: Mapped[float] = mapped_column(default_factory=time.time)
    kind: Mapped[str] = mapped_column(index=True)
    subject: Mapped[str] = mapped_column(index=True)
    data: Mapped[Json] = mapped_column(default_factory=dict)


for _class in (Turn, Sample, Batch, Policy):
    states.enforce(_class.state, _class.transitions)
