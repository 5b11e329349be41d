"""Doubts about an output that has no status: it may report a failure, was cut short, or talks like a person.

Its approval is no more than the absence of a failure that has a known form. In a short one a single word of refusal or
negation, in whatever language, makes that absence worth nothing. And programs print names, numbers and paths; whoever
talks in sentences, thanks or is content may want to be heard by the judge. A doubt never makes a failure: it only
withholds the approval.
"""

import re
from collections.abc import Sequence

from clawrl_trl.judge.tools.patterns import REPORTS_SUCCESS

_FAILS = re.compile(
    r"\b(?:denied|refused|rejected|fail\w*|errors?|invalid|unable|cannot|unknown|missing|expired|unavailable|blocked"
    r"|unreachable|unreadable|forbidden|aborted|cancell?ed|interrupted|timed? ?out|timeout|nothing|none|not|\w+n['’]t"
    r"|no(?! (?:changes?|errors?|warnings?|issues?|problems?|conflicts?)\b)|without success|gave up|try again"
    r"|verweigert|abgelehnt|fehl\w*|kein\w*|nicht|ungültig\w*|unbekannt\w*|abgelaufen"
    r"|refus[ée]\w*|échec|échou\w*|erreur|aucun\w*|introuvable|impossible|invalide|pas|expiré\w*"
    r"|deneg\w*|rechaz\w*|fall[óoa]\w*|ningun[ao]?|ningún|imposible|inválid\w*|caducad\w*"
    r"|negat[oai]|rifiutat\w*|errore|fallit\w*|nessun\w*|non|impossibile|scadut\w*"
    r"|negad\w*|recusad\w*|falh\w*|nenhum\w*|não|expirad\w*"
    r"|geweigerd|mislukt|fout|geen|niet|ongeldig|verlopen"
    r"|nekad\w*|misslyck\w*|inte|ingen|inget|ogiltig\w*|nekte\w*|mislyk\w*|ikke|ugyldig\w*"
    r"|odmow\w*|odmów\w*|błąd|nie|brak|nieudan\w*|nieprawid\w*"
    r"|отказ\w*|ошибк\w*|не|нет|недоступ\w*|сбой|неверн\w*|невозможн\w*"
    r"|hata|reddedil\w*|başarısız\w*|yok|değil|bulunamad\w*|geçersiz)\b"
    r"|拒绝|拒絕|失败|失敗|错误|錯誤|没有|沒有|无法|無法|不存在|未找到|无效|過期|过期|拒否|エラー|ません|ない|無効|期限切れ"
    r"|거부|실패|오류|없|못|않|만료|नहीं|त्रुटि|विफल|अस्वीकार|رفض|فشل|خطأ|لم |غير |تعذر",
    re.IGNORECASE,
)
"""Words of failure and negation; those of "no errors" and the like are none."""
_PERSON = re.compile(
    r"\b(?:thanks|thank you|thx|cheers|danke|merci|gracias|grazie|obrigad[oa]|bedankt|tack|takk|dzięki|dziękuję"
    r"|спасибо"
    r"|teşekkür\w*|well done|good job|nice work|love it|happy with|just what|exactly what"
    r"|zufrieden\w*|tevreden|nöjd\w*|tilfreds|zadowolon\w*|довол[ье]н\w*|memnun|soddisfatt\w*|satisfech[oa]s?|satisfait\w*"
    r"|(?:users?|owners?|customers?|clients?|humans?|person)\b(?:\W+\w+){0,4}?\W+(?:happy|satisfied|pleased|delighted"
    r"|content|thrilled|grateful|needed|wanted))\b"
    r"|谢谢|謝謝|感谢|满意|滿意|ありがと|満足|감사|만족|धन्यवाद|संतुष्ट|شكرا|راض",
    re.IGNORECASE,
)
"""Words of a person who is content."""
_CUT_SHORT = re.compile(r"(?:…|\.\.\.)\s*\Z|\A\W*(?:\w+ ){1,2}interrupted\b", re.IGNORECASE)
_UNSPACED = re.compile(r"[\u0900-\u0dff\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Letters of scripts in which a few of them are a sentence."""
SENTENCE_WORDS, SENTENCE_SHARE, SENTENCE_LETTERS = 6, 0.8, 8
"""Least words of a sentence, and least share of them that are nothing but letters; least letters without spaces."""
FEW_LINES, FEW_CHARACTERS = 5, 600
"""Size of an output that is short: of longer ones a word in the middle says nothing."""


def speaks_like_a_person(text: str) -> bool:
    """Decide if an output holds words of somebody who is content."""
    return bool(_PERSON.search(text))


def is_doubtful(lines: Sequence[str]) -> bool:
    """Decide if lines of an output without a status leave it open whether the step worked.

    Args:
        lines: Its lines that are not empty.
    """
    text = "\n".join(lines)
    if _CUT_SHORT.search(text) or any(map(_is_sentence, lines)):
        return True
    return len(lines) <= FEW_LINES and len(text) <= FEW_CHARACTERS and bool(_FAILS.search(text))


def _is_sentence(line: str) -> bool:
    if REPORTS_SUCCESS.match(line.strip()):
        return False
    words = line.split()
    plain = sum(word.strip(".,;:!?\"'()[]’“”«»¿¡-–—").replace("'", "").replace("’", "").isalpha() for word in words)
    if len(words) >= SENTENCE_WORDS and plain >= SENTENCE_SHARE * len(words):
        return True
    return len(_UNSPACED.findall(line)) >= SENTENCE_LETTERS
