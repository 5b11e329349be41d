"""Causes of a failed tool call that say nothing about the reply that made it.

Two of them are known: the infrastructure failed (a network, a full disk, a service that is busy), which no better
call would have changed; and the failure is the finding that was wanted (`grep` found nothing, a test fails that was to
be reproduced). In both cases the failure is no objection: the judge abstains.
"""

import re

_LONGEST_COMMAND = 1000
"""Characters of a command in which its program and options are looked for."""
_EDGE = 12
"""Lines at either end of an output in which a cause is looked for."""

_INFRASTRUCTURE = re.compile(
    r"""
      (?:http(?:/\d(?:\.\d)?)?|status(?:[ _]?code)?|code|error|returned|response|fehler|erreur|errore|erro|ошибка|błąd
        |エラー|错误|오류)["']?[\s:=(]{0,4}
        (?:429|50[0234]|52\d)\b
    | \b(?:429|50[0234])\b\W{0,3}(?:too\ many|bad\ gateway|service\ (?:temporarily\ )?unavail|gateway\ time|internal)
    | \btoo\ many\ requests\b | \brate[\s_-]?limit(?:ed|ing|s)?\b | \bquota[\s_-]?(?:was\ )?exceeded\b
    | \b(?:hourly|daily|weekly|monthly|free)\ [^.\n]{0,24}\b(?:limit|quota|allowance|credits?)\b
    | \b(?:quota|allowance|credits?|free\ [^.\n]{0,24})\ (?:\w+\ ){0,4}?(?:used\ up|exhausted|spent)\b
    | \bout\ of\ (?:credits|quota)\b | \b(?:limit|quota|allowance)\b[^\n]{0,60}\bresets\ (?:at|in|on)\b
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
    | net/http:\ request\ canceled | \bclient\.timeout\ exceeded\b | \bdeadline\ exceeded\b
    | \bRESOURCE_EXHAUSTED\b
    | \b(?:network|service|carrier|power)\ (?:\w+\ )?outage\b
    | \bcould\ not\ (?:connect\ to\ server|get\ lock|acquire\ lock)\b
    """,
    re.I | re.X,
)

_INFRASTRUCTURE_ELSEWHERE = re.compile(
    r"zeitüberschreitung|später (?:erneut|noch ?mal)|nicht erreichbar|überlastet|wartungs"
    r"|kein speicherplatz|kontingent"
    r"|r[ée]essaye[zr]|délai (?:d['’]attente )?(?:dépassé|expiré)|indisponible|aucun espace disponible|injoignable"
    r"|tiempo de espera|int[ée]nt[ea]lo (?:de nuevo|más tarde)|no disponible|mantenimiento|no queda espacio|saturado"
    r"|tempo scaduto|riprova|non disponibile|non raggiungibile|manutenzione|spazio esaurito"
    r"|tempo (?:limite )?(?:esgotado|excedido)|tente novamente|indisponível|manutenção|não há espaço"
    r"|probeer het (?:later|opnieuw)|niet bereikbaar|onderhoud|geen ruimte"
    r"|spróbuj (?:ponownie|później)|przekroczono (?:limit|czas)|niedostępn|przerwa techniczna|brak miejsca"
    r"|превышен\w* (?:лимит|врем)|повторите попытку|попробуйте позже|время ожидания|недоступ|не осталось места"
    r"|zaman aşımı|tekrar deneyin|ulaşılamıyor|bakım|yer kalmadı"
    r"|超时|超時|稍后(?:再|重)|稍後|过于频繁|频率限制|限流|配额|系统繁忙|服务不可用|无法连接|維護|维护中|空间不足"
    r"|上限に達し|再試行|しばらく|タイムアウト|混雑|メンテナンス|接続できません|空き容量"
    r"|잠시 후|시간 ?초과|점검 중|한도를? 초과|연결할 수 없",
    re.I,
)
"""The same as other languages tell it: of a network, a service or a disk."""

_SEARCHES = frozenset(
    [
        "grep",
        "egrep",
        "fgrep",
        "zgrep",
        "rg",
        "ag",
        "ack",
        "pgrep",
        "which",
        "command",
        "test",
        "[",
        "[[",
        "cmp",
        "lsof",
        "fuser",
        "pidof",
    ]
)
"""Programs that say by exit code 1 that something isn't there or differs."""
_COMPARISONS = re.compile(
    r"(?:colordiff|diff|sdiff)\b|git\s(?:.*\s)?(?:diff\b.*--(?:exit-code|quiet)|grep\b|merge-base\b)"
)
_CHECKS = re.compile(
    r"(?:systemctl\s(?:is-active|is-enabled|status)|service\s\S+\sstatus|pg_isready|(?:nc|ncat)\s+-\w*z\w*|ping|curl\s.*(?:-f|--fail)"
    r"|(?:ruff|black|prettier|isort|gofmt|rustfmt|terraform\sfmt)\b.*(?:--check|--diff|-l|-check|-c)\b"
    r"|(?:sha\d+|md5|b2)sum\s.*(?:-c|--check)|gpg\s.*--verify|openssl\sverify|spctl|codesign\s.*(?:-v|--verify)|id\s\S+"
    r"|kubectl\sauth\scan-i|getent|host|nslookup|dpkg\s-[sl]|rpm\s-q|pip\sshow|git\s(?:show-ref|ls-remote\s.*--exit-code)"
    r"|ruff\scheck|flake8|pylint|bandit|shellcheck|hadolint|clamscan|trivy|semgrep|gitleaks|cargo\s(?:clippy|audit)"
    r"|(?:npx\s)?(?:eslint|stylelint|markdownlint|htmlhint|jsonlint)|yamllint|xmllint|epubcheck|lychee|linkchecker"
    r"|(?:npm|yarn|pnpm)\s(?:audit|outdated)|pip-audit|terraform\splan\b.*-detailed-exitcode|kubectl\sdiff)\b"
)
_PREFIX = re.compile(
    r"\A(?:(?:sudo|time|env|nice)\s+|ssh\s+(?:-\w\s+\S+\s+)*[\w.@-]+\s+|cd\s+\S+\s*(?:&&|;)\s*|\w+=\S*\s+)+"
)


def is_infrastructure(text: str) -> bool:
    """Return whether an output names a failure of network, service or machine, at its beginning or end."""
    lines = [line[:500] for line in text.splitlines() if line.strip()]
    edges = lines if len(lines) <= 2 * _EDGE else [*lines[:_EDGE], *lines[-_EDGE:]]
    return any(_INFRASTRUCTURE.search(line) or _INFRASTRUCTURE_ELSEWHERE.search(line) for line in edges)


def opens_with_infrastructure(text: str) -> bool:
    """Return whether an output begins with such a failure, or is one line of it, as of a tool without a status."""
    head = text.strip()[:500]
    return bool(_INFRASTRUCTURE.match(head) or ("\n" not in head and _INFRASTRUCTURE.search(head)))


def is_finding(command: str) -> bool:
    """Return whether the last program of a shell command says by its exit code what it found, not that it failed."""
    # The last one's code is the command's, whether a pipe or a list.
    last = re.split(r"\|\|?|&&|;|\n", command.strip())[-1].strip()
    last = _PREFIX.sub("", last[:_LONGEST_COMMAND])
    program = (last.split() or [""])[0].rpartition("/")[2]
    return program in _SEARCHES or bool(_COMPARISONS.match(last) or _CHECKS.match(last))
