"""The habits of known clients: one row a client, data only.

Clients rewrite what they send: they stamp messages with the time, add transient context, wrap a message that
was lost, wake the agent on their own. A row says, as regular expressions, which texts those are; what follows
from them is decided elsewhere (`messages` drops or cleans them, `kinds` tells side requests by them). A new
client is a new row in `DIALECTS` and no new code. All patterns but `session_id`, `lines` and `blocks` are
matched at the start of the text, ignoring case.

Anybody may send texts of many megabytes, so no pattern may look at the rest of a text again from each of its
beginnings: repetitions are bounded, possessive, or stop where the pattern may begin anew.
"""

import re
from dataclasses import dataclass
from re import Pattern


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The habits of one client: what it does to a conversation on its way out.

    Attributes:
        name: The client's name; an id found by `session_id` has the identity source `message:<name>`.
        session_id: Finds the client's own session id in the first user message (group `id`; an optional group
            `key` holds the client's name of the session).
        stamps: Cut from the start of a user message: time stamps and envelopes.
        metadata: A block of JSON (group `json`) at the start of a user message that may name its sender.
        envelopes: The start of a user message that names a chat (group `chat`) and may name its sender (group `name`,
            inside group `label`).
        cuts: Cut wherever they stand in a user message that holds the needle, as `(needle, pattern)`: status
            lines, internal context. A message of nothing else is transient: it is in no later history.
        carried: A user message that carries what a tool returned, such as its images.
        events: A user message that is an internal event: a next state, but not the owner's words, and gone or
            rewritten in later history.
        wakes: The opening of a run that the client starts by itself, as `(pattern, reason)`. The run (the
            message and what the assistant does until the next user message) is a side matter.
        wake_words: Texts that give such an opening away wherever they stand, as `(text, reason)`.
        wake_marks: What such a message reads later; another user message may be merged behind it.
        queued: Opens a user message that repeats one that got no answer.
        nudges: Asks to go on after a failure: the end of a queued message, or a message of its own.
        summaries: A message that replaces the history by a summary.
        agents: The opening of a session whose "user" is another agent or a timer.
        side_prompts: Last user messages of side requests, as `(pattern, reason)`.
        side_systems: System prompts of side requests without tools, as `(pattern, reason)`; searched.
        one_shots: Whole requests without tools and without any reply in them, by their last user message, as
            `(pattern, reason)`.
        side_keys: Session names (group `key` of `session_id`) of side runs, as `(pattern, reason)`; searched.
        agent_keys: Session names of sessions whose "user" is another agent; searched.
        fork_keys: Session names of runs on a copy of another session's history, whose own id names only the copy;
            searched.
        session_headers: Headers that carry the client's session id, which its side requests and subagents share.
        user_ids: Finds that id in the body's `metadata.user_id` (group `id`); searched.
        telemetry: The opening of a system prompt that is meant for the servers of the client's maker and differs
            with every request. It is cut before the engine sees it: no two prompts would share a beginning.
    """

    name: str
    session_id: tuple[str, ...] = ()
    stamps: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    envelopes: tuple[str, ...] = ()
    cuts: tuple[tuple[str, str], ...] = ()
    carried: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    wakes: tuple[tuple[str, str], ...] = ()
    wake_words: tuple[tuple[str, str], ...] = ()
    wake_marks: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()
    nudges: tuple[str, ...] = ()
    summaries: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    side_prompts: tuple[tuple[str, str], ...] = ()
    side_systems: tuple[tuple[str, str], ...] = ()
    one_shots: tuple[tuple[str, str], ...] = ()
    side_keys: tuple[tuple[str, str], ...] = ()
    agent_keys: tuple[str, ...] = ()
    fork_keys: tuple[str, ...] = ()
    session_headers: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    telemetry: tuple[str, ...] = ()


_SENTENCE = r"(?:\A|[.!?:]\s|\n)\s{0,20}"

ANY_CLIENT = Dialect(
    name="any",
    stamps=(r"\[[^\]\n]{0,120}?\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}[^\]\n]{0,60}\]",),
    summaries=(
        r"\W{0,3}the conversation history before this point was compacted",
        r"<summary>",
        r"this session is being continued from a previous conversation",
    ),
    side_systems=(
        (
            _SENTENCE + r"(?:please |your (?:task|job) is to |you )?"
            r"(?:generate|create|write|suggest|produce|provide|give|return|reply with|respond with|come up with|output"
            r"|make|name)\b[^\n]{0,100}\b(?:titles?|(?:topic|chat|session|conversation) (?:label|name))\b[^\n]{0,150}"
            r"\b(?:conversation|chat|session|thread|dialog(?:ue)?|discussion"
            r"|(?:user(?:'s)?|first|opening)(?: \w+)? (?:message|request|prompt))s?\b",
            "a request for a title",
        ),
        (r"\A\W*you are an? [^.\n]{0,60}\btitle[- ](?:generator|writer|maker)\b", "a request for a title"),
        (
            r"\A\W*(?:please )?(?:summari[sz]e|compact|create (?:a|an) [^.\n]{0,30}summary of) "
            r"[^\n]{0,80}\b(?:conversation|chat|session|context|history)\b",
            "a request to summarise a conversation",
        ),
        (
            r"\A\W*you are an? [^.\n]{0,40}\b(?:context|conversation|chat|session)[- ]summari[sz]",
            "a request to summarise a conversation",
        ),
    ),
    one_shots=(
        (r"<conversation>[\s\S]*</conversation>", "a request to summarise a conversation"),
        (
            r"(?:please )?(?:generate|provide|create|write|suggest) a (?:concise|short|brief)[^\n]{0,80}"
            r"\btitle\b[^\n]{0,80}\b(?:conversation|chat|session)\b",
            "a request for a title",
        ),
    ),
)

OPENCLAW = Dialect(
    name="openclaw",
    session_id=(
        r"^[ \t]*Runtime: agent=(?:(?>[^\n]*?\bsession=)(?P<key>[^|\n]*+)\|)?"
        r"[^\n]*?\bsessionId=(?P<id>[^\s|]+)",
    ),
    stamps=(
        r"(?:Conversation info|Sender|Thread starter|Replied message|Forwarded message context"
        r"|Chat history)[^\n]{0,60}"
        r"\(untrusted[^)\n]*\):\s*```json\n[\s\S]*?\n```",
        r"[^\n]{1,200}⟦openclaw:ctx⟧[ \t]*\n(?:```json\n[\s\S]*?\n```|(?:[^\n]+(?:\n|\Z))*+)",
        r'Current message:\n\[Replying to: "(?:[^"\\\n]|\\.)*+"\]\n(?:#\w+:)?',
    ),
    metadata=(r"(?:Conversation info|Sender)[^\n]{0,60}\n```json\n(?P<json>[\s\S]{0,20000}?)\n```\s*",),
    envelopes=(
        r"\[(?P<chat>(?![a-z]{3} \d{4}-)[a-z][^\]\n]{2,160}?)(?: \+\w{1,8})?(?: [a-z]{3})? \d{4}-\d{2}-\d{2}[T ]"
        r"[^\]\n]{0,60}\] (?P<label>(?P<name>[^\n:\[\]]{1,80}): )?",
    ),
    cuts=(
        (
            "Runtime: agent=",
            r"^[ \t]*Runtime: agent=[^\n]*(?:\n(?:Current model identity|Reasoning): [^\n]*)*",
        ),
        ("[message_id:", r"^[ \t]*\[message_id: [^\]\n]*\][ \t]*$"),
        ("Context: ⟦openclaw:ctx⟧", r"^Context: ⟦openclaw:ctx⟧[\s\S]*"),
        (
            "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>",
            r"(?:OpenClaw runtime context[^\n]{0,200}\n)?(?:This context is runtime-generated[^\n]{0,200}\n)?\s{0,20}"
            r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>[\s\S]*?(?:<<<END_OPENCLAW_INTERNAL_CONTEXT>>>|\Z)",
        ),
    ),
    carried=(r"Attached image\(s\) from tool result",),
    events=(
        r"(?:OpenClaw runtime (?:context|event)[^\n]*\n|This context is runtime-generated[^\n]*\n"
        r"|<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>|\s)*\[Internal task completion event\]",
        r"OpenClaw runtime event\.",
        r"\[OpenClaw (?:exec completion|session event)\]",
        r"\[Inter-session message\]",
        r"An async command you ran earlier has completed",
        r"A background task (?:completed\. Use this result|finished\. Process the completion update)\b",
    ),
    wakes=(
        (
            r"(?:Follow the heartbeat|Read HEARTBEAT\.md|Run the following periodic tasks \(only those due)",
            "a heartbeat",
        ),
        (r"\[?(?:OpenClaw )?heartbeat (?:poll|check|tick|run)\b\s*[:\].]", "a heartbeat"),
        (r"\[?(?:OpenClaw )?cron wake\b\s*[:\].]", "a cron wake"),
        (r"A scheduled (?:reminder|task|cron event)\b[^\n]{0,20}\btriggered", "a cron wake"),
        (r"Pre-compaction memory flush", "a memory flush"),
        (r"Store durable memories (?:now|only)", "a memory flush"),
    ),
    wake_words=(
        ("heartbeat monitor scratch context", "a heartbeat"),
        ("If nothing needs attention, reply HEARTBEAT_OK", "a heartbeat"),
        ("If nothing needs attention, reply NO_REPLY", "a heartbeat"),
    ),
    wake_marks=(r"\[OpenClaw heartbeat poll\]", r"\[OpenClaw cron wake\]"),
    queued=(
        r"\[Queued user message from a previous active turn[^\]]*\]",
        r"\[Earlier unanswered user message[^\]]*\]",
    ),
    nudges=(
        r"Continue the current task",
        r"\[Retry after the previous model attempt failed or timed out\]",
        r"\[System\] Your previous turn was interrupted",
    ),
    agents=(r"\[Subagent (?:Context|Task)\]", r"\[cron:[^\]\n]*\]"),
    side_prompts=(
        (r"\[cron:[^\]\n]*\]", "a cron run"),
        (r"[\s\S]{0,4000}<btw_side_question>", "a /btw side question"),
    ),
    side_systems=((r"/btw side question", "a /btw side question"),),
    side_keys=(
        (r"internal-session-effects", "a memory flush or another internal run"),
        (r"(?:^|:)cron:", "a cron run"),
        (r"(?:^|:)heartbeat(?:$|:)", "a heartbeat"),
    ),
    agent_keys=(r"(?:^|:)subagent:",),
    fork_keys=(r"(?:^|:)internal-session-effects(?:$|:)",),
)

OPEN_WEBUI = Dialect(
    name="open-webui",
    one_shots=(
        (
            r"### Task:(?>\s*\n)(?=[\s\S]*<(?:chat_history|context|user_context)>)",
            "a background task of the chat page (title, tags, follow-ups, search)",
        ),
    ),
)

CLAUDE_CODE = Dialect(
    name="claude-code",
    cuts=(
        ("<system-reminder>", r"<system-reminder>[\s\S]*?(?:</system-reminder>|\Z)"),
        ("[Request interrupted by user", r"\[Request interrupted by user[^\[\]\n]*\]"),
    ),
    side_systems=(
        (r"\bAnalyze if this message indicates a new conversation topic", "a request for a title"),
        (r"\bYour task is to process Bash commands that an AI coding agent wants to run", "a check of a command"),
    ),
    one_shots=((r"quota\s*\Z", "a probe of the quota"),),
    session_headers=("x-claude-code-session-id",),
    user_ids=(
        r"_session_(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\Z",
        r"\"session_id\"\s*:\s*\"(?P<id>[^\"]+)\"",
    ),
    telemetry=(r"\s*x-anthropic-billing-header:[^\n]*\n*",),
)

DIALECTS: tuple[Dialect, ...] = (ANY_CLIENT, OPENCLAW, OPEN_WEBUI, CLAUDE_CODE)
"""Every client we know; the first row holds what many clients share."""


def _union(name: str, then: str = "") -> Pattern[str]:
    patterns = [f"(?:{pattern})" for dialect in DIALECTS for pattern in getattr(dialect, name)]
    return re.compile(f"(?:{'|'.join(patterns)}){then}", re.IGNORECASE)


def _rows(name: str) -> tuple[str, ...]:
    return tuple(row for dialect in DIALECTS for row in getattr(dialect, name))


def _pairs(name: str) -> tuple[tuple[str, str], ...]:
    return tuple(row for dialect in DIALECTS for row in getattr(dialect, name))


def _reasons(name: str) -> tuple[tuple[Pattern[str], str], ...]:
    return tuple((re.compile(pattern, re.IGNORECASE), reason) for pattern, reason in _pairs(name))


STAMP = _union("stamps", r"\s*")
METADATA = _union("metadata")
ENVELOPE = _union("envelopes")
# Without IGNORECASE: the needle, too, is looked for as it is written.
CUTS = tuple((needle, re.compile(pattern, re.MULTILINE)) for needle, pattern in _pairs("cuts"))
CARRIED = _union("carried")
EVENT = _union("events")
WAKE = _reasons("wakes")
WAKE_WORDS = _pairs("wake_words")
WAKE_MARK = _union("wake_marks", r"\s*")
QUEUED = _union("queued")
NUDGE = _union("nudges")
SUMMARY = _union("summaries")
AGENT = _union("agents")
SIDE_PROMPT = _reasons("side_prompts")
SIDE_SYSTEM = _reasons("side_systems")
ONE_SHOT = _reasons("one_shots")
SIDE_KEY = _reasons("side_keys")
AGENT_KEY = _union("agent_keys")
FORK_KEY = _union("fork_keys")
SESSION_HEADERS = _rows("session_headers")
USER_ID = tuple(re.compile(pattern) for pattern in _rows("user_ids"))
TELEMETRY = re.compile(r"\A(?:" + _union("telemetry").pattern + ")", re.IGNORECASE)
SESSION_ID = tuple(
    (dialect.name, re.compile(pattern, re.MULTILINE)) for dialect in DIALECTS for pattern in dialect.session_id
)
