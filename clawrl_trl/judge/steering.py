"""Text that speaks to the judge, in a reply or in what a tool returned.

A page or a program may hold verdicts, ratings, orders to whoever evaluates, or turns of a chat that never took place.
None of it may move a score, so the lines that hold it are left out before anything is scored; what else a result says
still counts. The owner's words go another way (`quotation`, `provenance`): of those the words of others are left out.
"""

import re

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

_LINES = re.compile(
    r"""
      ^\W*(?:(?:final|overall|judge(?:'s)?|my|the)\s+)*
        (?:"""
    + _VERDICT
    + r""")s?\b(?:\s+\w{2,6}\s+\w{3,12})?\W{0,6}
        (?:is\W{1,3})?(?:[+-]?\d|positiv|negativ|good|bad|pass(?:ed)?\b|excel|perfe[ck]t|corre[ck]t|approv|succe
          |gut|sehr|exzellent|bien|bueno|bom|ótim|aprovad|aprobad|ottim|approvat|отлично|хорошо)
    | (?:评分|評分|结论|裁决|判定|評価|スコア|평가|점수)\s*[:：=是は]\s*[+-]?[\d\w]
    | \\boxed\s*\{
    | ^\s*[\[({].*["'](?:score|verdict|rating|reward|vote|hint)["']\s*:.*[\])}]\s*,?\s*$
    | ^\W*(?:"""
    + _SPEAKER
    + r""")(?:\s*\([^)]*\))?\s*[\])】]?\s*[:：>\]】]
    | ^\s*\#{1,4}\s*(?:"""
    + _SPEAKER
    + r""")\s*$ | </?(?:user|human|owner|assistant|system|judge|evaluation|verdict)>
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

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u202a-\u202e\u2060-\u206f\u2800\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\ue000-\uf8ff\U0001d173-\U0001d17a\U000e0000-\U000e01ef\b]"
    # Joiners, marks and selectors, which scripts and emoji need, next to nothing of the kind.
    "|(?<![^\\x00-\\x7f])[\u200c-\u200f\ufe00-\ufe0f]+(?!\u20e3)|[\u200c-\u200f]+(?![^\\x00-\\x7f])"
    "|(?<=[\ufe00-\ufe0f])[\ufe00-\ufe0f]+"
    # Of a terminal: what is concealed, light on light or dark on dark.
    "|\x1b\\[(?:[\\d;]*;)?(?:8|30;40|40;30|37;47|47;37|97;107|107;97)m.*?(?:\x1b\\[[\\d;]*m|\\Z)",
    re.S,
)
_UNSEEN = (
    r"display:\s?none|visibility:\s?(?:hidden|collapse)|opacity:\s?0(?:\.0\d*)?(?![.\d])|font-size:\s?[01](?:\.\d+)?(?![.\d])"
    r"|(?<![-\w])color:\s?(?:transparent|white|#f{3}(?:f{3})?\b|rgba?\([^)]{0,40},\s?0\))|(?:left|top|indent):\s?-\d{3,}"
    r"|(?<![-\w])(?:max-)?(?:height|width):\s?0|clip(?:-path)?:|\shidden\b|type=\W?hidden|aria-hidden"
)
"""How markup says that an element isn't seen."""
_HIDDEN = re.compile(
    r"<!--.*?(?:-->|\Z)|\[\]\([^)\n]{0,300}\)|^\s{0,3}\[(?:comment|//|_|\.|#)\]:[^\n]*$"
    r"|\\iffalse\b.*?(?:\\fi\b|\Z)|\\begin\{comment\}.*?(?:\\end\{comment\}|\Z)|\\[hv]?phantom\{[^}\n]{0,300}\}"
    r"|<(?P<unread>script|style|template|noscript)\b[^<>]{0,200}>.{0,1000}?</(?P=unread)>"
    rf"|<(?:input|meta|img|area|br|hr|link)\b[^<>]{{0,400}}(?:{_UNSEEN}|content=|alt=\W?\w+\W\w+\W\w)[^<>]{{0,400}}>"
    rf"|<(?P<unseen>\w{{1,12}})\b[^<>]{{0,200}}(?:{_UNSEEN})[^<>]{{0,200}}>.*?(?:</(?P=unseen)>|\Z)",
    re.I | re.S | re.M,
)
"""Markup that whoever sees the page doesn't read."""


def cut_invisible(text: str) -> str:
    """Text without hidden markup and the characters that nobody sees, which can spell orders or split up words."""
    return _HIDDEN.sub("", _INVISIBLE.sub("", text))


def cut_verdict_talk(text: str, mark: str = "") -> str:
    """Cut the lines that state or order a verdict, or play a turn of a chat.

    Args:
        text: A reply, or what a tool, a page or a program wrote.
        mark: Stands in place of each such line; none by default.
    """
    speaks = [(line, bool(_LINES.search(cut_invisible(line[:2000])))) for line in text.splitlines()]
    return "\n".join(mark if is_cut else line for line, is_cut in speaks if mark or not is_cut)
