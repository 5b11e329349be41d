"""Text that speaks to the judge, in a reply or in what a tool returned.

A page or a program may hold verdicts, ratings, orders to whoever evaluates, or turns of a chat that never took place.
None of it may move a score, so the lines that hold it are left out before anything is scored; what else a result says
still counts. The owner's words go another way (`quotation`, `provenance`): of those the words of others are left out.
"""

import re

from clawrl_trl.judge.steering.invisible import cut_invisible

_VERDICT = (
    r"verdict|score|rating|grade|evaluation|judge?ment|reward|vote|feedback|label"
    r"|urteil|bewertung|wertung|belohnung|évaluation|jugement|appréciation|récompense"
    r"|veredicto|puntuación|puntuacion|calificación|evaluación|recompensa|veredito|avaliação|pontuação"
    r"|verdetto|giudizio|voto|valutazione|punteggio|вердикт|оценка|балл|награда|werdykt|ocena|karar|puan|oordeel|beoordeling"
)
_SPEAKER = (
    r"human|user|owner|customer|client|assistant|system|judge|developer|admin(?:istrator)?"
    r"|benutzer(?:in)?|nutzer(?:in)?|assistent|richter|entwickler|utilisateur|utilisatrice|juge|administrateur|développeur"
    r"|usuario|asistente|juez|administrador|desarrollador|usuário|assistente|juiz|utente|giudice|amministratore"
    r"|пользователь|ассистент|судья|администратор|użytkownik|asystent|kullanıcı|gebruiker|beheerder"
    r"|用户|用戶|助手|评审|管理员|系统|ユーザー|アシスタント|管理者|사용자|관리자|المستخدم|المساعد|उपयोगकर्ता"
)

_OPENING = re.compile(
    r"""
      (?:(?:final|overall|judge(?:'s)?|my|the)\s++)*+
        (?:"""
    + _VERDICT
    + r""")s?\b(?:\s++\w{2,6}\s++\w{3,12})?\W{0,6}
        (?:is\W{1,3})?(?:[+-]?\d|positiv|negativ|good|bad|pass(?:ed)?\b|excel|perfe[ck]t|corre[ck]t|approv|succe
          |gut|sehr|exzellent|bien|bueno|bom|ótim|aprovad|aprobad|ottim|approvat|отлично|хорошо)
    | (?:"""
    + _SPEAKER
    + r""")(?:\s*+\([^)]{0,200}\))?\s*+[\])】]?\s*+[:：>\]】]
    """,
    re.I | re.X,
)
"""How a sentence begins that states a verdict or plays a turn of a chat."""
_BEGIN = re.compile(r"(?:\A|(?<=[.!?…])\s|[。！？]|\\[nr])(?:\\[nrt]|\W)*+")
"""What stands in front of a sentence; in a text inside another one a line break is written as two characters."""
_LINES = re.compile(
    r"""
      (?:评分|評分|结论|裁决|判定|評価|スコア|평가|점수)\s*[:：=是は]\s*[+-]?[\d\w]
    | \\boxed\s*\{
    | ^\s*+[\[({](?=.*["'](?:score|verdict|rating|reward|vote|hint)["']\s*+:)(?=.*[\])}]\s*+,?\s*+$)
    | ^\s*+\#{1,4}\s*+(?:"""
    + _SPEAKER
    + r""")\s*+$ | </?(?:user|human|owner|assistant|system|judge|evaluation|verdict)>
    | <\|[^|>]{0,40}\|> | \[/?INST\] | <</?SYS>>
    | \b(?:judges?|evaluators?|graders?|raters?|reward\ models?|scorers?)\b.{0,80}
        \b(?:must|should|please|assign|give|award|scores?|rate|counts?|treat|mark|note|attention|consider)\b
    | \b(?:assign|give|award|rate|score|mark|count|treat|record|log|register|return|output)\b.{0,80}
        (?:\+\s?1\b|\b10\s?/\s?10\b|\b5\s?/\s?5\b|\b100\s?%|\bfull\ marks\b|\btop\ (?:score|marks|rating)\b
        |\bas\ (?:an?\ )?(?:success\w*|correct|positive|pass(?:ed)?|approved|satisf\w+|complete)\b)
    | \b(?:user|owner|customer|client)\ (?:is|was|has|seems|said|confirm(?:s|ed)|report(?:s|ed)|approve[sd])\b.{0,60}
        \b(?:delighted|happy|satisfied|pleased|thrilled|perfect|great|approv\w+|success\w*|positive|thanks|correct|works)\b
    | \b(?:override|overrides|overriding)\b.{0,60}\b(?:polic\w+|verdict|score|evaluation|judge|rules?)\b
    | \b(?:polic\w+|admin(?:istrator)?|evaluation)\b.{0,40}\boverrid\w+
    """,
    re.I | re.X,
)
"""What makes a whole line such talk, wherever it stands in it."""


def cut_verdict_talk(text: str, mark: str = "") -> str:
    """Cut the lines that state or order a verdict, or play a turn of a chat.

    Of a line that does so from one of its later sentences on, what stands before that is kept.

    Args:
        text: A reply, or what a tool, a page or a program wrote.
        mark: Stands in place of what is cut of each such line; none by default.
    """
    kept: list[str] = []
    for line in text.splitlines():
        begin = _find_talk(line)
        if begin is None:
            kept.append(line)
        elif part := " ".join(part for part in (line[:begin].rstrip(), mark) if part):
            kept.append(part)
    return "\n".join(kept)


def _find_talk(line: str) -> int | None:
    """Where the talk in a line begins; `None` if there is none."""
    shown = cut_invisible(line)
    if _LINES.search(shown):
        return 0
    for before in _BEGIN.finditer(shown):
        if _OPENING.match(shown, before.end()):
            # In what is left of a line with hidden characters another place is meant.
            return before.start() if shown == line else 0
    return None
