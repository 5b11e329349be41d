"""Reasons for which the owner's words may not become a hint.

A hint is put before the teacher as if the user had written it, and what the teacher then does is distilled into the
weights. So a hint may say how to answer: a manner, a library, which tool comes first, a piece of code. Refused is what
would teach more than that: links, secrets, markers of chat templates, fences, instructions about instructions, talk of
rewards, and commands to change tools, keys, policy, permissions or safety. Such a command that is itself forbidden
("don't use rm -rf there") is a correction like any other. In doubt a hint is refused.
"""

import re
from collections.abc import Iterable

from clawrl_trl.judge.care import undoes_care
from clawrl_trl.judge.quotation.own_words import ELIDED

MAX_HINT = 200
"""Longest hint, in characters."""

_SAFEGUARD = (
    r"(sandbox\w*|safety|safeguards?|security|(content|safety|spam) filters?|confirm(ing|ations?)?|approvals?"
    r"|permissions?|authenti\w+|authori[sz]ation|firewall|antivirus|encryption|signature|certificates?|tls|ssl|https"
    r"|login|moderation|monitoring|isolation|restrictions?|protections?|audit\w*|2fa|mfa|two.factor|captchas?|rate.?limits?"
    r"|allow.?lists?|(safety|security|permission|access)[ -]checks?)\b"
)
_REFUSED = {
    "quotation": re.compile(ELIDED),
    "fence": re.compile(r"```|~~~"),
    "link": re.compile(
        r"\b(https?|ftp|file|data|javascript):|www\.|\b(\d{1,3}\.){3}\d{1,3}\b|\b[\w.+-]+@[\w-]+\.\w+"
        r"|\bdot (com|org|net|io)\b"
        # Members of objects and packages look like domains.
        r"|(?<![\w.])(?!(self|this|cls|request|response|config|java|javax|system|asp|vb)\.)"
        r"\w[\w.-]*\.(com|org|net|io|dev|app|ru|cn|xyz|co|ly|ai|eu|uk|de|biz|gg|site)\b(?!\()",
        re.I,
    ),
    "template": re.compile(
        r"<[|｜]|[|｜]>|\[/?(INST|SYS\w*|AVAILABLE_TOOLS|TOOL_\w+)\]|<</?SYS|\[Hint from|<(start|end)_of_turn>"
        r"|</?(?-i:s|bos|eos|pad|unk|system|user|assistant|human|instructions?|think\w*|tool\w*|function\w*)\b[^>]*>"
        r"|\btool_?calls?\b|\bfunction_calls?\b|<(tool|think)|^\W*(system|assistant|human|user)\s*:"
        r"|\b(?-i:System|Assistant|Human|User|SYSTEM|ASSISTANT|HUMAN|USER)\s*:|###\s*\w+",
        re.I,
    ),
    "secret": re.compile(
        r"\b(api[_ -]?key|password|passwd|passphrase|secret|credential|bearer"
        r"|(private|ssh|signing|access|encryption|license|deploy|gpg|master|root|secret)[_ -]key"
        r"|(card|account|passport|social security|insurance) (number|no|details?)|cvv|cvc|iban|ssn)s?\b"
        r"|\b(rotate|revoke|reset|change|replace) (the |your |my |all )*(key|token)s?\b"
        # Of a text's or a tokenizer's tokens anybody may speak.
        r"|\b(api|access|auth\w*|refresh|session|security|personal|git\w*|hub|hf|jwt|login|csrf|bot|deploy|id|my"
        r"|your|our|its|this|that|valid|expired|stored|saved|new|old)[_ -]+tokens?\b"
        r"|\btokens? (from|in|into|out of|to|for) (the |my |your )*"
        r"(config\w*|env\w*|memory|vault|settings?|header|cookies?|keyring|file|log|url|account|server|browser|api"
        r"|admin\w*)\b"
        r"|\b(use|read|get|print|show|send|share|reveal|paste|post|copy|log|store|save|include|add|pass|keep"
        r"|export) (me )?(the|a|an) token\b"
        r"|(?<!\w)\.(env|netrc|ssh|aws|npmrc|pgpass)\b|\bid_(rsa|ed25519)\b|/etc/(passwd|shadow|sudoers)"
        r"|\bauthorized_keys\b|\b(environment|env) (variables|vars)\b|\bkey ?(chain|ring)\b"
        r"|\b(sk|pk|ghp|xox[bp])[-_]\w{8,}|\bAKIA[0-9A-Z]{12,}"
        # A digit tells a key from a long path or name.
        r"|\b(?=[A-Za-z+/_-]*\d)[A-Za-z0-9+/_-]{32,}={0,2}",
        re.I,
    ),
    "policy": re.compile(
        r"\b(system|developer) (prompt|message|role|instruction)s?\b|\b(developer|god|privileged) mode\b"
        r"|\bjailbr\w+|\bguardrails?\b|\bpolic(y|ies)\b|\bpretend\b|\bunrestricted\b|\buncensored\b"
        # A manner of answering may be meant for good; who the model is or obeys may not.
        r"|\bfrom now on\W+(you|your|i|i'm|we|my|me|the|this|that|all|any|every|act|be|behave"
        r"|work)\b|\byou\b.{0,40}\bfrom now on\b"
        r"|\b(ignore|disregard|forget|override|bypass|obey|discard|overrule)\b.{0,40}\b(what i|previous"
        r"|prior|above|earlier|all|any|everything|instructions?|rules?|prompts?|guidelines?|safety|limits|told)\b"
        r"|\b(new|other|hidden|secret|following|these|those|my|their|its) (instructions?|orders|rules?)\b"
        r"|\b(follow|obey|execute|do|run|trust) (whatever|anything|everything|all|any|each|every|the instructions?)\b"
        r"|\b(instructions?|commands?|orders) (in|on|from|inside|found) \b"
        r"|\byou are (now|no longer|dan|an? (ai|assistant|model|unrestricted))\b|\bact as\b|\brole.?play\b"
        r"|\b(?-i:DAN)\b"
        r"|\byour (real|new|true|only) (task|goal|job|purpose|name|identity|role)\b"
        r"|\b(no|no longer|no more) (refus\w+|rules?|limits)\b|\b(never|don't|do not|stop) refus\w+",
        re.I,
    ),
    "reward": re.compile(
        r"\b(reward|score|rating|verdict|vote|thumbs|five.stars?|full mark)(s|d|ing)?\b"
        r"|\b(tell|convince|persuade) the (judge|grader|evaluator)\b"
        r"|\b(rate|grade) (this|it|yours\w*|the (reply|answer))\b"
        r"|\bmark (this|it|the (reply|answer))\b.{0,12}\bas (correct|good|right|solved|done)\b",
        re.I,
    ),
    "obedience": re.compile(
        r"\b(do not|don't|never|stop) (follow|obey|listen)\w* (to )?(the|your|any|all|my|safety)\b"
        r"|\byour (own )?(instructions?|prompt|rules|guidelines|limits|commands)\b"
        r"|\b(do|follow|obey|trust|execute|believe)\b.{0,20}\b(what|whatever|anything|everything)\b.{0,40}"
        r"\b(says?|tells?|asks?|wants?|orders?|commands?)\b|\bas (an? )?(instructions?|orders?|commands?)\b"
        r"|\b(trust|believe|obey)\b.{0,30}\b(page|web\w*|site|e-?mail|tool|file|document|output|message)s?\b"
        r"|\b(execute|run|obey)\b.{0,30}\b(text|contents?|commands?)\b.{0,12}\b(in|from|on|of)\b"
        r"|\bdecode\b.{0,40}\b(run|execute|follow|obey)|\balways (agree|approve|accept|comply|say yes)\b"
        r"|\b(is|am|are) (always |now )?(an? |the |your )?(admin\w*|superuser|owner)\b|\badmins\b|\badministrators\b"
        r"|\btreat\b.{0,20}\bas (the |an? |your )?(owner|admin\w*|user|boss|trusted)\b",
        re.I,
    ),
    "deceit": re.compile(
        r"\b(lie|lying) (to|about)\b|\bdeceiv\w+|\bmislead\w*"
        r"|\b(hide|conceal) (it|this|that|them|what)\b.{0,30}\bfrom\b"
        r"|\b(say|claim|state|write|tell|insist)\b.{0,60}"
        r"\b(whatever|no matter what|regardless of what|even (if|though|when))\b"
        r"|\b(don't|do not|never) (tell|inform|warn|notify|alert) (the |your |an? )?(users?|owners?|any\w*|them)\b",
        re.I,
    ),
    # The owner says "you": who speaks of an assistant, or to all of them, is somebody else.
    "third person": re.compile(
        r"(?<!like )(?<!like a )(?<!like an )\b(assistants?|(chat ?)?bots?|agents?|your software)"
        r" (should(n't)?|must(n't)?|ought|has to|have to|shall|got (this|it|that))\b"
        r"|^\W*(\w+ to )?(assistants?|(chat ?)?bots?|agents?|ais?)\s?:",
        re.I,
    ),
    "payment": re.compile(
        r"\b(buy|purchase|pay|transfer|wire|donate)\b.{0,30}\b(card|money|dollars?|euros?|bitcoin|crypto|funds?)\b"
        r"|\bmy (credit |debit )?card\b",
        re.I,
    ),
    "disclosure": re.compile(
        r"\b(send|upload|post|forward|(e-?)?mail|leak|exfiltrate|transmit|publish|share|push|copy|put|export)\b.{0,40}"
        r"\b(files?|(spread)?sheets?|records?|invoices?|folder|database|data|dump|history|logs?|conversation|transcript|contacts|contents?|everything)\b"
        r".{0,20}\b((to|on|into) (my|the public|an?|another|external)|to (?!the)|pastebin|public|elsewhere)\b"
        r"|\bmake\b.{0,20}\b(repo\w*|bucket|files?|data\w*|folder|server|port)\b.{0,9}\bpublic\b"
        r"|\bexport the contacts\b",
        re.I,
    ),
}
"""What is refused wherever it stands."""

_COMMANDS = {
    "command": re.compile(
        r"\bsudo\b|\brm -|\brmdir /s|\bmkfs|\bdd if=|\bchmod (-R )?(\+s|a\+|0?777)|\|\s*(ba|z)?sh\b"
        r"|\bpip(e|ing)\b.{0,30}\b(ba|z)?sh(ell)?\b|\$\(|\bgit push\b.{0,20}(-f\b|--force)|\bforce[- ]push\w*"
        r"|\breset --hard|\bdrop (table|database|schema)\b|\btruncate table\b|\bkill (-9|all\b)"
        r"|\bshutdown\b|\breboot\b"
        r"|--(force|no-verify|dangerously[\w-]*|privileged|insecure|no-check-certificate|yolo|no-sandbox)"
        r"|\bverify\s*=\s*False|\bshell\s*=\s*True|StrictHostKeyChecking|\bcurl (-\w*k|.{0,40}\|)"
        r"|\b(delete|wipe|erase|destroy|format|overwrite|empty)\b (all|every\w*"
        r"|the (whole|entire|disk|boot\w*|partition|database|repo\w*|backups?|trash|inbox|mails?))\b"
        r"|\bopen(ing)? (the )?ports?\b|\bon the host\b"
        r"|\b(merge|push|commit|deploy|release)\w*\b.{0,12}\b(straight|directly|right|immediately)\b"
        r"|\b(run|install\w*|execute|download)\b.{0,30}\b(straight|directly|right)\b.{0,12}\b(web|internet|net|url|site)\b"
        r"|\b(skip|without|bypass|never (run|do|wait for)|don't (run|wait for))\b.{0,12}"
        r"\b(code )?(reviews?|tests|test suite|ci)\b",
        re.I,
    ),
    "safety": re.compile(
        r"\b(disabl\w+|turn(ing|ed)? off|switch(ing|ed)? off|deactivat\w+|remov\w+|skip\w*|bypass\w*|circumvent\w*"
        r"|avoid\w*|(get|getting|work\w*) around|weaken\w*|loosen\w*|relax\w*|suppress\w*|evad\w+|lift\w*|drop\w*"
        r"|stop (using|asking|requiring|checking)"
        r"|(don't|do not|never) (use|run in|ask\w*|require|need|check|wait|verify|validate)"
        rf"|no(?= \w)|without|outside|(don't|do not) bother with|do without)\b.{{0,40}}?\b{_SAFEGUARD}"
        rf"|{_SAFEGUARD} (off|disabled|bypassed)\b|\bauto-?approv\w+|\bunsandboxed\b"
        r"|\b(don't|do not|never|stop|without) (ask|confirm|check)\w*\b"
        r"(( with)?( me)? (before|with me|first)\b|( me)?\W*\Z)"
        r"|\b(stop( with)?|no|all|any|with|leave out|drop|skip|omit|without)\b.{0,12}"
        r"\b((safety|health|medical|legal|risk|dosage)[ -]"
        r"(warnings?|disclaimers?|advice)|(warnings?|disclaimers?) (about|altogether|or caution))\b",
        re.I,
    ),
    "permission": re.compile(
        r"\bas (an? |the )?(root|admin(istrator)?|superuser)\b|\broot (access|rights|shell|user|account|privileges?)"
        r"|\b(admin\w*|elevated|full|write|shell|unlimited) (rights|access|account|privileges?|permissions?)\b"
        r"|\b(grant|give)\b.{0,30}\b(access|permissions?|rights|privileges?|root|admin)\b|\bsuperuser\b|\bprivileges?\b"
        r"|\b(change|edit|extend|widen|raise|set) (the |your |my |its )?(permissions?|privileges?|rights|access)\b"
        r"|\b(allow|approve|accept|whitelist|permit|authori[sz]e)\b.{0,9}\b(all|any|every|each)\b.{0,12}"
        r"\b(commands?|requests?|domains?|tools?|calls?|actions?|hosts?|connections?)\b",
        re.I,
    ),
    "tool": re.compile(
        r"(?<!\bthe )\b(add|install|remov|delet|uninstall|disabl|enabl|regist|redefin|replac|renam|chang|modif|edit"
        r"|overrid|overwrit|updat|configur|reconfigur|(?:un)?block|load|turn (on|off)|give yourself|hide|extend)\w*\b"
        r"[^,.;]{0,30}?\b(tool|plug-?in|extension|skill|connector|mcp)s?\b(?! ?(tip|bar|box|chain))"
        r"|\b(new|another|extra|own) (tool|plug-?in|extension|skill|connector)s?\b",
        re.I,
    ),
}
"""What is refused unless the sentence itself forbids it."""

DANGEROUS = frozenset(_COMMANDS) | {
    "secret",
    "policy",
    "reward",
    "obedience",
    "deceit",
    "third person",
    "payment",
    "disclosure",
    "care",
}
"""Reasons after which nothing further of the message becomes a hint either."""

_TOOL_CHANGE = r"\b(install|uninstall|disabl|enabl|regist|redefin|overrid|reconfigur|(un)?block|remov|turn (on|off))"

_CLAUSE_END = re.compile(r"[,.;:!?()–—]|\b(but|and|just|then|so|instead(?! of))\b", re.I)
_QUESTION = re.compile(r"\bwhy (don't|do not|didn't|not|can't)\b", re.I)
_NEGATOR = re.compile(
    r"\b\w+n't\b|\b(dont|not|never|no|cannot|without|avoid\w*|stop\w*|instead of|rather than|forget|skip|omit|miss"
    r"|hesitate|wait|fail|refuse|refrain|afraid|fear|shy|worry|mind|bother|neglect|prevent|unless|except|only)\b",
    re.I,
)


def find_refusal(hint: str, tool_names: Iterable[str] = (), reply: str = "") -> str | None:
    """Find the reason why a text may not become a hint; `None` when it may.

    Args:
        hint: The text.
        tool_names: Names of the request's tools, which a hint may name and not change.
        reply: The reply that the hint is about: one that took care may not be corrected to take less.
    """
    plain = hint.strip().replace("’", "'")
    if len(plain) < 3:
        return "too short"
    if len(plain) > MAX_HINT:
        return "too long"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in plain):
        return "control characters"
    for reason, pattern in _REFUSED.items():
        if pattern.search(plain):
            return reason
    for reason, pattern in _COMMANDS.items():
        if any(not is_forbidden(plain[: match.start()]) for match in pattern.finditer(plain)):
            return reason
    if any(_changes(plain, name) for name in tool_names if name):
        return "tool"
    return "care" if undoes_care(plain, reply) else None


def is_forbidden(before: str) -> bool:
    """Return whether the words of a clause before a command forbid it ("never use"), counting double negations."""
    clause = _QUESTION.sub("", _CLAUSE_END.split(_QUESTION.sub("", before))[-1])
    return len(_NEGATOR.findall(clause)) % 2 == 1


def _changes(text: str, tool_name: str) -> bool:
    return bool(re.search(rf"{_TOOL_CHANGE}\w*\b[^,.;]{{0,30}}?\b{re.escape(tool_name)}\b", text, re.I))
