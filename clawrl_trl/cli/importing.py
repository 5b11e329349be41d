"""Hand-written conversations become turns of the ledger, for training without a live chat.

Nobody sampled these replies, so their ids come from the engine's tokenizer and their log-probs from scoring
them under the served policy; the turn says so in its `engine` field. From there on they take the same way as
a captured chat: the judge reads the next state, a trainer leases the sample.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.cli.imported_file import read_conversations
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.calls import find_base_name
from clawrl_trl.engines.sync_client import SyncEngineClient
from clawrl_trl.gateway.sessions.identity import named_session
from clawrl_trl.ledger import Ledger, policies, turns
from clawrl_trl.ledger.schema import Turn
from clawrl_trl.messages import other_parts
from clawrl_trl.policy_names import name_policy
from clawrl_trl.run import RunFolder

ENGINE = "import"
OWNER = "local"


def import_file(path: Path, run: str) -> dict[str, int]:
    """Read a conversation file into the ledger of a run.

    Args:
        path (`Path`): JSON or JSON lines, as `read_conversations` takes them.
        run (`str`): Run folder; made if it does not exist. Its engine is used, or started for the moment.

    Returns:
        `dict`: How many `sessions` and `turns` are new, and how many of them are `trainable`.

    Raises:
        UserError: If the file is not of that form.
    """
    conversations = read_conversations(path)
    folder = RunFolder(run).make()
    settings = ServeSettings.find(run) or ServeSettings(run=str(run))
    ledger = Ledger.open(settings.ledger_url or folder.ledger)
    # All is scored before anything is stored: a failure half-way leaves the ledger as it was.
    with _open_engine(folder, settings) as engine:
        with ledger.reader() as tx:  # closed before the engine scores, which may take hours
            version = policies.serving(tx).version
        served = name_policy(version) if version else find_base_name(engine.models())
        prepared = [
            (conversation, [_make_turn(entry, engine, version, served) for entry in conversation["turns"]])
            for conversation in conversations
        ]
    with ledger.transaction() as tx:
        return _store(tx, prepared)


@contextmanager
def _open_engine(folder: RunFolder, settings: ServeSettings) -> Iterator[SyncEngineClient]:
    from clawrl_trl.serving.serve import engine_only

    with engine_only(folder, settings), SyncEngineClient.of_run(folder, settings) as client:
        yield client


def _make_turn(entry: dict[str, Any], engine: SyncEngineClient, version: int, served: str) -> Turn:
    messages, tools = _as_messages(entry["prompt"]), entry.get("tools") or None
    response = entry["response"]
    if isinstance(response, str):
        response = {"role": "assistant", "content": response}
    tool_field = {"tools": tools} if tools else {}
    prompt_ids = engine.tokenize({"messages": messages, "add_generation_prompt": True, **tool_field})
    whole = engine.tokenize({"messages": [*messages, response], "add_generation_prompt": False, **tool_field})
    # Some chat templates rewrite what came before once a reply follows: such a reply has no ids of its own.
    fits = whole[: len(prompt_ids)] == prompt_ids and len(whole) > len(prompt_ids)
    completion_ids = whole[len(prompt_ids) :] if fits else None
    logprobs = _score_completion(engine, prompt_ids, completion_ids, served) if completion_ids else None
    reason = _find_obstacle(entry, messages, fits)
    return Turn(
        session_id="",
        completion_id="",
        kind=entry.get("type", "main"),
        kind_reason="said so in the imported file",
        messages=messages,
        tools=tools,
        provenance=_derive_provenance(messages),
        # Prompt log-probs are those of temperature 1.
        sampling={"temperature": 1.0},
        response=response,
        prompt_ids=np.asarray(prompt_ids, dtype=np.int32),
        completion_ids=None if completion_ids is None else np.asarray(completion_ids, dtype=np.int32),
        logprobs=logprobs,
        trainable=reason is None,
        untrainable_reason=reason,
        policy_version=version,
        model=served,
        engine=ENGINE,
    )


def _find_obstacle(entry: dict[str, Any], messages: list[dict[str, Any]], fits: bool) -> str | None:
    """Return why a turn of the file can't be trained, or `None`."""
    if not fits:
        return "no token prefix"
    if any(map(other_parts, messages)):
        return "its log-probs can't be had: the engine scores text alone"
    return None if entry.get("trainable", True) else "marked so in the imported file"


def _as_messages(prompt: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _derive_provenance(messages: list[dict[str, Any]]) -> list[str]:
    return ["owner" if message.get("role") == "user" else str(message.get("role")) for message in messages]


def _score_completion(
    engine: SyncEngineClient, prompt_ids: list[int], completion_ids: list[int], served: str
) -> np.ndarray[Any, np.dtype[np.float32]]:
    scored = engine.prompt_logprobs(context=prompt_ids, scored=completion_ids, model=served)
    return np.asarray(scored.logprobs, dtype=np.float32)


def _store(tx: Transaction, conversations: list[tuple[dict[str, Any], list[Turn]]]) -> dict[str, int]:
    counts = {"sessions": 0, "turns": 0, "trainable": 0}
    for conversation, prepared in conversations:
        now = time.time()
        external_id = conversation["session_id"]
        session = turns.get_or_create_session(
            tx,
            owner=OWNER,
            external_id=external_id,
            identity_source=ENGINE,
            now=now,
            # The gateway looks for it under this id, when a client goes on with it.
            session_id=named_session(OWNER, external_id),
        )
        parent: str | None = None
        stored = {turn.completion_id for turn in turns.of_session(tx, session.id)}
        for index, (entry, turn) in enumerate(zip(conversation["turns"], prepared, strict=True)):
            # By its place, so that the same file imported again finds what is stored.
            turn.completion_id = f"import-{session.id}-{index}"
            if turn.completion_id in stored:
                continue  # the file was imported before, wholly or in part
            turn.session_id, turn.parent_id = session.id, parent
            turns.add(tx, turn)
            parent = turn.id
            if turn.kind == "main" and entry.get("next_state") is not None:
                following = _as_messages(entry["next_state"])
                turns.set_next_state(tx, turn.id, following, _derive_provenance(following), None, now)
            counts["turns"] += 1
            counts["trainable"] += turn.trainable
        counts["sessions"] += not stored
    return counts
