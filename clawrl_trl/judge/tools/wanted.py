"""Whether a failure may be what was wanted: who asks if a port is closed is answered by a refused connection.

Of a request that wants to know, in whatever language, a failure tells nothing, but for one that shows a call that was
wrong in itself: no such command, no such option, a syntax error.
"""

import re

from clawrl_trl.judge.tools.patterns import EDGE

LONGEST_QUESTION = 300
"""Most characters of a request that only wants to know."""

_FAILURE = re.compile(
    r"""
      \breproduc(?:e|es|ed|ing|tion)\b | \brepro\b | \bfailing\ test\b | \b(?:red|failing)[\s-]first\b | \bTDD\b
    | \b(?:should|must|to|will|expected\ to|supposed\ to|needs?\ to|has\ to)\ (?:still\ )?
        (?:fail|crash|error|break|be\ rejected|reject)\b
    | \b(?:should|must|will|ought\ to|has\ to)\ (?:now\ |still\ )?(?:be\ )?
        (?:refuse|block|prevent|forb[ia]d|den[yi]|complain|bounce|turn(?:ed)?\ (?:\w+\ )?(?:away|down))\w*
    | \b(?:should|must|may)(?:n['’]?t|\ not)\ (?:be\ )?(?:able|allowed|possible|permitted|let\b|accept)
    | \bmust\ (?:be\ stopped|stop\ the) | \bnegative\ test
    | \bno\ longer\ (?!works?\b|runs?\b|compil|builds?\b|starts?\b|loads?\b|responds?\b|shows?\b|prints?\b)
    | \b(?:old|wrong|bogus|expired|revoked|fake|bad)\s
        (?:password|pin|key|token|code|card|login|certificate|signature)\b
    | \bexpect(?:ed|ing|s)?\ (?:an?\ |to\ (?:get|see)\ (?:an?\ )?)?
        (?:error|failure|exception|rejection|refusal|4\d\d)\b
    | \b(?:confirm|verify|show|prove|check|make\ sure|see|demonstrate)\b[^.!?\n]{0,80}
        \b(?:fails?|failing|raises?|throws?|crash(?:es)?|broken|rejects?|is\ rejected|errors?\ out|gone|missing|unused
        |not\ (?:there|installed|running|used|found|listening)|denied|blocked|refused|closed)\b
    | \bflak[ey]\w*\b | \b(?:lint|scan|audit)\b
    | \b(?:find\ out|find|tell\ me|show(?:\ me)?|list|see|check)\ (?:which|where)\b[^.!?\n]{0,60}
        \b(?:invalid|broken|wrong|dead|faulty|damaged|corrupt\w*|fail\w*|nowhere|errors?)\b
    | \b(?:broken|dead|go(?:es)?\ nowhere|invalid)\b[^?\n]{0,60}\b(?:find\ out|tell\ me|show\ me|list)\ which\b
    | \b(?:known|old|existing|pre-?existing|unrelated)\ (?:test\ )?(?:fail\w*|errors?|red\ tests?|broken\ tests?)\b
    | \bfail\w*\b[^.!?\n]{0,40}\b(?:is|are|was|were)\ (?:\w+\ ){0,2}(?:known|old|pre-?existing|unrelated|expected)\b
    | \bhow\ many\b[^.!?\n]{0,40}\b(?:warnings?|errors?|violations?|fail\w*)\b
    | \b(?:is|are)\ [^.!?\n]{0,40}\b(?:closed|blocked|gone|unreachable|denied|refused)\b
    """,
    re.I | re.X,
)
"""Words with which a failure, or the absence of something, is asked for."""
_YES_OR_NO = re.compile(
    r"(?:^|[.!?;:,\n–—-]\s*|\b(?:and|but|or|so|ok|then|hey|pls|please)\s+)"
    r"(?:(?:is|are|was|were|do|does|did|has|have|had|am|will|would|should|must|may"
    r"|isn|aren|wasn|weren|don|doesn|didn|hasn|haven|won|shouldn)(?:['’]?t)?\b(?! you\b)"
    r"|(?:can|could)(?:['’]?t)?\b(?! (?:you|we|u)\b)|any(?:thing|body|one)?\b|still\b)[^?\n]*\?",
    re.I,
)
_ASKS_TO_KNOW = re.compile(
    r"\b(?:whether|prove|proof|demonstrate)\b"
    r"|\b(?:check|confirm|verify|double-?check|see|test|find out|show(?: me)?|tell me|look|know|try|curious)\b"
    r"[^.!?\n]{0,40}\bif\b"
    r"|\b(?:check|confirm|verify|make sure|ensure|see|test|show(?: me)?|look|try)\b[^.!?\n]{0,60}"
    r"(?:\b(?:nobody|nothing|no one|none|no|not|never|cannot|only|old|wrong|bad)\b|n['’]t\b"
    r"|\b(?:is|are|was|were|do|does|did|has|have|had|ca|wo)nt\b)",
    re.I,
)
"""Orders to look, of which those to see to it that something works are none."""
_ASKS_ELSEWHERE = re.compile(
    r"[¿？؟]|\bob\b|\b(?:über)?prüf\w*|\bteste\b|\bschau\w*|\bbeweis\w*|\bbestätig\w*"
    r"|\bstell\w* .{0,20}\bnach\b|\breproduzier\w*|nicht mehr|(?:soll|muss) .{0,40}(?:scheitern|abgelehnt|rot\b)"
    r"|(?:darf|soll|sollte|kann|dürfen|sollen) (?:\w+ )?(?:nicht|kein)"
    r"|\bvérifi\w*|\bconfirme[rz]?\b|\bprouve\w*|\bmontre\w* que|\breprodui\w*|\bsi\b"
    r"|\bne .{0,20}\bplus\b|ne (?:doit|peut|devrait)"
    r"|\bcomprueb\w*|\bcomprob\w*|\bverifi(?:ca|car|care|co|chi|que|cá)\w*\b(?<!cation)(?<!cations)"
    r"|\bconfirma(?:r|me|mi)?\b|\bdemuestra\w*|\bprueba\w*|\bya no\b|no (?:debe|puede|debería)"
    r"|\bcontrolla\w*|\bdimostra\w*|\bprova\w*|\briproduc\w*|non (?:deve|può|dovrebbe)|non .{0,20}più"
    r"|\bcomprov\w*|\bveja se|\bvê se|\breproduz\w*|não (?:deve|pode)|já não"
    r"|não .{0,20}mais"
    r"|\bcontroleer\w*|\bverifieer\w*|\bbevestig\w*|\bbewijs\w*|\bkijk\w*|\bof er\b|niet meer"
    r"|(?:mag|moet) (?:\w+ )?niet"
    r"|\bsprawd\w*|\bpotwierd\w*|\budowodni\w*|\bczy\b|\bodtw[oó]rz\w*|już nie|nie (?:może|powin)"
    r"|провер\w*|подтверди\w*|докажи\w*|\bли\b|воспроизвед\w*|больше не|не (?:долж|мо[жг])"
    r"|перевір\w*|\bчи\b"
    r"|\bkontrol\w*|\bdoğrula\w*|\bm[ıuü]\b|\btest et|\bkanıtla\w*|\bartık\b|\w+m[ae]mal[ıi]\b"
    r"|\bbekräft\w*|\bom det\b|\bsjekk\w*|\bbekreft\w*|\btjek\w*|\btarkist\w*"
    r"|是不是|是否|有没有|有沒有|还在|吗|嗎|确认|確認|检查|檢查|验证|驗證|看看|看下|看一下|证明|證明|复现"
    r"|不应该|不该|不能|不再|应该(?:失败|报错|被拒)|拒绝"
    r"|確かめ|検証|本当に|かどうか|ですか|ますか|ないか|再現|はず|弾かれ|エラーにな|できなく"
    r"|확인|인지|는지|은지|맞는|검증|재현|나요|안 (?:되|돼)|못 (?:하|해)|거부|실패해야"
    r"|जांच|जाँच|क्या|تحقق|تأكد|هل ",
    re.I,
)
"""How others than English ask to know, and say that something is not to be."""
_ASKS_WHAT = re.compile(
    r"(?:^|[.!;:,]\s+)\W*(?:(?:so|and|ok|hey|pls|please)\W+)*"
    r"(?:what|which|who|whose|where|when|why|how|(?:can|could|would|will) (?:you|we|u))\b",
    re.I | re.M,
)
"""Questions that want more than a yes or no, and orders in a question's form."""
_WRONG_CALL = re.compile(
    r"command not found|not recognized as|(?:unknown|unrecognized|invalid|illegal|no such) (?:option|flag|command)"
    r"|(?:unrecognized|unknown|invalid) arguments?|^usage:|\bsyntax ?error\b|incorrect syntax|parsererror"
    r"|parameter cannot be found|parameterbinding|the token '.{1,9}' is not"
    r"|\b(?:Name|Attribute|Import|ModuleNotFound|Indentation)Error\b"
    r"|(?:kommando|befehl) (?:wurde )?nicht gefunden|commande introuvable|orden no encontrada|comando non trovato"
    r"|comando não encontrado|nie znaleziono polecenia|команда не найдена|未找到命令|コマンドが見つかりません"
    r"|komut bulunamadı|unbekannte option|option inconnue|opción desconocida|opzione non riconosciuta"
    r"|nieznana opcja|неизвестн\w+ опци",
    re.I | re.M,
)


def is_failure_wanted(text: str) -> bool:
    """Return whether a request, or a reply that explains its call, looks for something to fail or be absent."""
    return bool(_FAILURE.search(text[:EDGE]))


def wants_to_know(request: str) -> bool:
    """Return whether a request asks if something is so: a failed call may be the answer.

    One of more than `LONGEST_QUESTION` characters is a task, whatever it asks besides.
    """
    if len(request) > LONGEST_QUESTION:
        return False
    forms = (_YES_OR_NO, _ASKS_TO_KNOW, _ASKS_ELSEWHERE)
    return any(form.search(request) for form in forms) or ("?" in request and not _ASKS_WHAT.search(request))


def is_wrong_call(output: str) -> bool:
    """Return whether an output tells of a call that was wrong in itself, whatever was to be found out."""
    return bool(_WRONG_CALL.search(output[:EDGE]) or _WRONG_CALL.search(output[-EDGE:]))
