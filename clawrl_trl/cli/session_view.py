"""A session as a person reads it: turn by turn with `clawrl inspect`, decision by decision with `clawrl explain`."""

from collections.abc import Mapping, Sequence
from typing import Any

from clawrl_trl import pictures
from clawrl_trl.cli.printer import Printer
from clawrl_trl.gateway.sessions import reading
from clawrl_trl.ledger.turns import short_ids

Row = Mapping[str, Any]
Message = dict[str, Any]


def print_turns(printer: Printer, rows: Sequence[Row], images: Sequence[pictures.Picture]) -> None:
    """Print the turns of a session.

    Args:
        printer (`Printer`): Where to.
        rows (`Sequence[Mapping]`): Its turns, as `turns.inspect` gives them.
        images (`Sequence[Picture]`): Its pictures.
    """
    short = short_ids([row["turn_id"] for row in rows])
    for number, row in enumerate(rows, 1):
        printer.print_rule(f"{short[row['turn_id']]}  {row['kind']}  {row['state']}  {_format_score(row)}")
        facts = [f"policy {row['policy_version']}", f"finished by {row['finish_reason']}"]
        facts += [f"{name} {row['detail'][name]:+g}" for name in ("outcome", "signal") if name in row["detail"]]
        printer.print_line(", ".join(facts), "dim")
        for message, provenance in _new_messages(row["messages"]):
            _print_message(printer, message, _name_speaker(message, provenance))
        for picture in images:
            if picture.turn == number:
                printer.print_line(f"picture: {picture}")
        _print_message(printer, row["response"] or {}, "reply")
        next_turn = row["next_turn_id"]
        behind = f", in turn {short.get(next_turn, next_turn)}" if next_turn else ""
        follow_ups = zip(row["next_state"] or [], row["next_state_provenance"] or [], strict=False)
        for message, provenance in follow_ups:
            _print_message(printer, message, f"next state: {_name_speaker(message, provenance)}{behind}")
        for feedback in row["feedback"]:
            value = "" if feedback["value"] is None else f" {feedback['value']:+g}"
            printer.print_line(f"feedback ({feedback['kind']}{value})", "bold")
            if feedback["text"]:
                printer.print_indented(feedback["text"])
        if row["hint"]:
            printer.print_line(f"hint ({row['hint_source']})" if row["hint_source"] else "hint", "bold")
            printer.print_indented(row["hint"])


def print_reasons(printer: Printer, rows: Sequence[Row]) -> None:
    """Print why each turn of a session was filed, judged and trained as it was.

    Args:
        printer (`Printer`): Where to.
        rows (`Sequence[Mapping]`): Its turns, as `turns.explain` gives them; at least one.
    """
    printer.print_line(
        f"Session {rows[0]['session_id']}: recognised by {describe_identity(rows[0]['identity_source'])}."
    )
    short = short_ids([row["turn_id"] for row in rows])
    for row in rows:
        sample = f"sample {row['sample']}" if row["sample"] else "no sample"
        printer.print_line(
            f"{short[row['turn_id']]}  {row['kind']}  {row['state']}  {_format_score(row)}  {sample}", "bold"
        )
        reasons = [f"filed as {row['kind']}: {row['kind_reason']}" if row["kind_reason"] else ""]
        reasons += ["trainable" if row["trainable"] else f"not trainable: {row['untrainable_reason']}"]
        reasons += [row["note"] or ""]
        exam = f" (exam: {row['exam']})" if row["exam"] else ""
        reasons += [f"judged by {row['judge']}{exam}" if row["judge"] else ""]
        reasons += [f"hint ({row['hint_source']}): {row['hint']}" if row["hint_source"] else ""]
        reasons += [f"sample {row['sample']}: {row['sample_reason']}" if row["sample_reason"] else ""]
        for reason in filter(None, reasons):
            printer.print_indented(reason)


IDENTITIES = {
    "header": "the header {}",
    "body": "the body's field {}",
    "url": "its name in the URL",
    "message": "the id that {} writes into its messages",
    "import": "its name in an imported file",
    "inferred": "the messages it repeats",
}


def describe_identity(source: str) -> str:
    """Describe in words how a session was recognised; `source` is the session's `identity_source`."""
    kind, _, detail = source.partition(":")
    return IDENTITIES[kind].format(detail or "for it") if kind in IDENTITIES else source


def _format_score(row: Row) -> str:
    return "not scored" if row["score"] is None else f"score {row['score']:+g}"


def _new_messages(messages: Sequence[Message]) -> list[tuple[Message, str]]:
    """Return what is new in a request since the reply before: cleaned messages, each with its provenance."""
    if not messages:
        return []
    read = reading.read(messages)
    replies = [index for index, note in enumerate(read.notes) if note.role == "assistant"]
    new = list(zip(*read.after(replies[-1] if replies else -1), strict=True))
    # A request that repeats its predecessor brings nothing new: show what it ends with.
    return new or [(messages[-1], read.provenance[-1])]


def _name_speaker(message: Mapping[str, Any], provenance: str) -> str:
    role = str(message.get("role"))
    return role if provenance in (role, "owner") else f"{role} ({provenance})"


def _print_message(printer: Printer, message: Mapping[str, Any], heading: str) -> None:
    printer.print_line(heading, "bold")
    printer.print_indented(_format_message(message))


def _format_message(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_format_part(part) for part in content)
    calls = [
        f"→ {call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or []
    ]
    return "\n".join([*([str(content)] if content else []), *calls])


def _format_part(part: Mapping[str, Any]) -> str:
    url = pictures.get_url(part)
    return str(part.get("text", f"[{part.get('type')}]")) if url is None else f"[{pictures.read_url(url)[0]}]"
