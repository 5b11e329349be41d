"""Causes of a failed tool call that say nothing about the reply that made it.

Two of them are known: the infrastructure failed (a network, a full disk, a service that is busy), which no better
call would have changed; and the failure is the finding that was wanted (`grep` found nothing, a test fails that was to
be reproduced). In both cases the failure is no objection: the judge abstains.
"""

import re

_EDGE = 12
"""Lines at either end of an output in which a cause is looked for."""

_INFRASTRUCTURE = re.compile(
    r"""
      (?:http(?:/\d(?:\.\d)?)?|status(?:[ _]?code)?|code|error|returned|response)["']?[\s:=(]{0,4}
        (?:429|50[0234]|52\d)\b
    | \b(?:429|50[0234])\b\W{0,3}(?:too\ many|bad\ gateway|service\ (?:temporarily\ )?unavail|gateway\ time|internal)
    | \btoo\ many\ requests\b | \brate[\s_-]?limit(?:ed|ing|s)?\b | \bquota\ (?:was\ )?exceeded\b
    | \boverloaded(?:_error)?\b | \bbad\ gateway\b | \bservice\ (?:is\ )?(?:temporarily\ )?unavailable\b
    | \bgateway\ time-?out\b | \btemporary\ failure\b | \btemporarily\ unavailable\b | \bname\ resolution\b
    | \bcould\ not\ resolve\ (?:host|proxy)\b | \bgetaddrinfo\b
    | \b(?:ENOTFOUND|EAI_AGAIN|ECONNRESET|ECONNREFUSED|ETIMEDOUT|EHOSTUNREACH|ENOSPC|EDQUOT|ENOMEM)\b
    | \bconnection\ (?:was\ )?(?:refused|reset|aborted|timed\ out)\b
    | \bconnection\ to\ \S+\ (?:was\ )?(?:lost|closed|failed)\b | \bserver\ closed\ the\ connection\b
    | \bnetwork\ is\ unreachable\b | \bno\ route\ to\ host\b | \bhost\ is\ down\b
    | \b(?:read|connect|request|operation|handshake|i/o)\ time-?out\b
    | \b(?:read|connect|request|operation)\ timed\ out\b | \bmax\ retries\ exceeded\b
    | \btry\ again\ (?:later|in)\b | \b(?:scheduled|under)\ maintenance\b
    | \bno\ space\ left\ on\ device\b | \bdisk\ (?:is\ full|quota\ exceeded)\b | \bcannot\ allocate\ memory\b
    | \bOOM-?killed\b | \bpreempted\b | \brunner\ (?:has\ )?(?:lost|received\ a\ shutdown)\b | \blost\ communication\b
    | \bcould\ not\ (?:connect\ to\ server|get\ lock|acquire\ lock)\b
    """,
    re.I | re.X,
)

_SEARCHES = frozenset(
    ["grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack", "pgrep", "which", "command", "test", "[", "[[", "cmp"]
)
"""Programs that say by exit code 1 that something isn't there or differs."""
_COMPARISONS = re.compile(
    r"(?:colordiff|diff|sdiff)\b|git\s(?:.*\s)?(?:diff\b.*--(?:exit-code|quiet)|grep\b|merge-base\b)"
)
_CHECKS = re.compile(
    r"(?:systemctl\s(?:is-active|is-enabled|status)|service\s\S+\sstatus|pg_isready|(?:nc|ncat)\s+-\w*z\w*|ping|curl\s.*(?:-f|--fail)"
    r"|(?:ruff|black|prettier|isort|gofmt|rustfmt|terraform\sfmt)\b.*(?:--check|--diff|-l|-check|-c)\b"
    r"|(?:npm|yarn|pnpm)\s(?:audit|outdated)|pip-audit|terraform\splan\b.*-detailed-exitcode|kubectl\sdiff)\b"
)
_PREFIX = re.compile(r"(?:(?:sudo|time|env|nice)\s+|cd\s+\S+\s*(?:&&|;)\s*|\w+=\S*\s+)+")

_FAILURE_WANTED = re.compile(
    r"""
      \breproduc(?:e|es|ed|ing|tion)\b | \brepro\b | \bfailing\ test\b | \b(?:red|failing)[\s-]first\b | \bTDD\b
    | \b(?:should|must|to|will|expected\ to|supposed\ to|needs?\ to|has\ to)\ (?:still\ )?
        (?:fail|crash|error|break|be\ rejected|reject)\b
    | \b(?:confirm|verify|show|prove|check|make\ sure|see|demonstrate)\b[^.!?\n]{0,80}
        \b(?:fails?|failing|crash(?:es)?|broken|rejects?|is\ rejected|errors?\ out|no\ longer|gone|missing|unused
        |not\ (?:there|installed|running|used|found|listening)|denied|blocked|refused|closed)\b
    | \b(?:is|are)\ [^.!?\n]{0,40}\b(?:closed|blocked|gone|unreachable|denied|refused)\b
    """,
    re.I | re.X,
)


def is_infrastructure(text: str) -> bool:
    """Return whether an output names a failure of network, service or machine, at its beginning or end."""
    lines = [line[:500] for line in text.splitlines() if line.strip()]
    edges = lines if len(lines) <= 2 * _EDGE else [*lines[:_EDGE], *lines[-_EDGE:]]
    return any(_INFRASTRUCTURE.search(line) for line in edges)


def opens_with_infrastructure(text: str) -> bool:
    """Return whether an output begins with such a failure, or is one line of it, as of a tool without a status."""
    head = text.strip()[:500]
    return bool(_INFRASTRUCTURE.match(head) or ("\n" not in head and _INFRASTRUCTURE.search(head)))


def is_finding(command: str) -> bool:
    """Return whether the last program of a shell command says by its exit code what it found, not that it failed."""
    # The last one's code is the command's, whether a pipe or a list.
    last = re.split(r"\|\|?|&&|;|\n", command.strip())[-1].strip()
    last = _PREFIX.sub("", last)
    program = (last.split() or [""])[0].rpartition("/")[2]
    return program in _SEARCHES or bool(_COMPARISONS.match(last) or _CHECKS.match(last))


def is_failure_wanted(text: str) -> bool:
    """Return whether a request, or a reply that explains its call, looks for something to fail or be absent."""
    return bool(_FAILURE_WANTED.search(text[:4000]))
