"""Forms in which people carry other people's text into a message, as data: mail headers, attributions, requests.

English, German, Spanish, French and Portuguese throughout, other languages where a form has a fixed wording. Every
pattern is matched against one line or one sentence and has bounded repetitions: texts of many megabytes are read in
time proportional to their length.
"""

import re

_FLAGS = re.IGNORECASE

FORWARDED = re.compile(
    r"\s*+(?:[-_=*]{2,40}+\s*+)?"
    r"(?:(?:begin(?: of)? )?forwarded message|forwarded by|original message"
    r"|(?:anfang der )?weitergeleitete[nr]? (?:nachricht|e-?mail)|urspr[üu]ngliche nachricht|weitergeleitet von"
    r"|(?:inicio del )?mensaje (?:reenviado|original)"
    r"|(?:d[ée]but du )?message (?:transf[ée]r[ée]|d['’]origine|original)"
    r"|(?:in[íi]cio da )?mensagem (?:encaminhada|reencaminhada|original)"
    r"|messaggio (?:inoltrato|originale)|(?:doorgestuurd|oorspronkelijk) bericht"
    r"|пересылаемое сообщение|исходное сообщение|转发的?邮件|原始邮件|転送されたメッセージ|元のメッセージ)"
    r"\s*+(?:[-_=*]{2,40}+|:|：)?\s*+\Z"
    r"|\s*(?:(?:ok(?:ay)?|so|well|hm+)\W+)*(?:here(?:['’]s| is)|this is|found|got)\b[^\n]{0,60}"
    r"\b(?:pages?|e-?mails?|mails?|letters?|articles?|posts?|sites?|websites?|ads?|lists?|menus?|signs?|boards?)\b"
    r" (?:says?|said|writes?|wrote|shows?|reads?)\W*\Z"
    # As mail programs write it in front of a subject, and people in front of what they pass on.
    r"|[^\n]{0,60}\b(?:fwd|forwarded|pasted|copied|quoted) (?:it )?below\W*\Z"
    r"|\s*(?:fwd?|wg|rv|enc|doorst)\b(?:[:：]|\.:?| (?:from|of|by|von|de|van)\b[^\n]{0,80}[:：]\s*\Z)",
    _FLAGS,
)
"""A line after which everything is somebody else's mail."""

HEADER = re.compile(
    r"\s{0,3}[*_]{0,2}(?:from|sent|date|to|cc|bcc|subject|reply-to|von|gesendet|datum|an|betreff|de"
    r"|enviado(?: el| em)?"
    r"|fecha|para|asunto|envoy[ée]|date d['’]envoi|à|objet|data|assunto|da|inviato|oggetto|van|verzonden|aan|onderwerp"
    r"|от|кому|тема|发件人|收件人|主题|差出人|宛先|件名)[*_]{0,2}\s?(?::|：)",
    _FLAGS,
)
"""A line of a mail's header; two in a row begin a mail."""

ATTRIBUTION = re.compile(
    r"\s{0,3}(?:on\b.{4,160}\bwrote|am\b.{4,160}\bschrieb\b.{0,80}|el\b.{4,160}\bescribi[óo]|le\b.{4,160}\ba [ée]crit"
    r"|em\b.{4,160}\bescreveu|il\b.{4,160}\bha scritto|op\b.{4,160}\bschreef\b.{0,80}"
    r"|w dniu\b.{4,160}\bnapisał\(?a?\)?"
    r"|.{4,160}\b(?:пишет|написала?)|.{2,160}(?:写道|のメール))\s?(?::|：)\s*\Z",
    _FLAGS,
)
"""A line that names the writer of the mail below."""

INVITES = re.compile(
    r"\b(?:(?:paste|send|share|upload|drop) (?:it|them|me|over|in|the|that|your|both|all)\b"
    r"|copy\b[^.?!\n]{0,60}\bhere\b"
    r"|füg\w*\b.{0,30}\bein\b|schick\w* (?:mir|es|sie|ihn|den|die|das)\b|p[ée]ga(?:lo|la|los|las)\b"
    r"|env[íi]a(?:lo|la|me)\b|collez|envoie(?:-|z)|envoyez|incolla(?:lo|la)?\b|inviami|plak|stuur (?:me|het|ze)\b"
    r"|пришли\w*|вставь\w*"
    r"|wklej\w*|yapıştır\w*)|粘贴|发给我|貼って|送って|붙여",
    _FLAGS,
)
"""The end of a reply that asks for a text, which then comes without a mark of its own."""

ASKS_FOR_OPINIONS = re.compile(
    r"\bwhat (?:has|have|did|does|do)\b(?! you think)[^.?!\n]{0,60}"
    r"\b(?:heard|said?|says?|think|thought|told|commented|written|wrote)\b"
    r"|\bwhat (?:others|people|they|he|she|customers?|clients?|guests?|reviewers?) (?:say|said|think|wrote)\b"
    r"|\bwhich (?:comments?|reviews?|feedback)\b",
    _FLAGS,
)
"""The end of a reply that asks what others said: the answer's praise and blame are theirs."""

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
DATED = re.compile(
    rf"\s{{0,3}}(?:\d{{1,2}}[./-]\d{{1,2}}(?:[./-]\d{{2,4}})?|\d{{1,2}}\.? ?{_MONTH}"
    rf"|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?)\s?[:–-] ",
    _FLAGS,
)
"""A line of somebody's notes or messages by date; several of them are a record."""

RULED = re.compile(
    r"\s*+(?:[-=*#_~]{2,40}+\s*+[\w ,.:'’()-]{1,40}?\s*+[-=*#_~]{2,40}+"
    r"|[-=*#_~]{2}[=*#~]{0,80}+[-_][-=*#_~]{2,80}+)\s*+\Z"
)
"""A line of dashes with words between them, with which people mark where a pasted text begins and ends."""

MARKED_UP = re.compile(
    r"\s*<[a-z][^<>\n]{0,200}>.*</[a-z][a-z0-9]{0,11}>\s*\Z|\s*(?:([*#=+~])\1{2,})\s.*\s\1{3,}\s*\Z", _FLAGS
)
"""A line of a page's source, or of a banner: "*** Maintenance on Friday ***"."""

STROKES = re.compile(r"[\s.·•|]*[/−–—-][\s./|·•−–—-]*")
"""Nothing but dashes and dots, with at least one dash: a rule, or what is left of Morse."""

EVERY_TEXT = re.compile(
    r"\b(?:each|every)(?: user['’]?s?)? (?:message|input|line|text)\b[^.\n]{0,20}\bis (?:an?|one)\b[^.\n]{0,40}"
    r"\b(?:lines?|sentences?|texts?|phrases?|captions?|subtitles?|words?)\b"
    r"|\b(?:translate|render|proofread|transcribe|paraphrase) (?:everything|whatever) (?:i|the user|he|she|they)\b",
    _FLAGS,
)
"""A rule by which every message is a text to be worked on: nothing in it is then said of the reply."""

STARTS_SERIES = re.compile(
    r"\bfirst(?: (?:one|line|sentence|text|phrase))?\s?[:：](?!.*\b(?:then|second|next|last)\b)"
    r"|\b(?:line by line|one (?:by one|at a time|after the other))\b",
    _FLAGS | re.S,
)
"""In a request about a text: more of them are to follow."""

CHAT_LINE = re.compile(
    r"\s{0,3}\[?(?:\d{1,4}[./-]\d{1,2}[./-]\d{1,4},? )?\d{1,2}:\d{2}(?::\d{2})?(?: ?[ap]m)?\]?(?: -)? [^:\n]{1,40}: ",
    _FLAGS,
)
"""A line of an exported chat: time, name, text."""

GREETING = re.compile(
    r"\s{0,3}(?:dear|hi|hello|hey|good (?:morning|day)|sehr geehrte[rs]?|liebe[rs]?|hallo|estimad[oa]s?"
    r"|querid[oa]s?|hola"
    r"|ch[eè]re?s?|bonjour|madame|prezad[oa]s?|car[oa]s?|olá)\b[^\n.?]{1,60}[,!:]\s*\Z",
    _FLAGS,
)
CLOSING = re.compile(
    r"\s{0,3}(?:(?:best|kind|warm)(?: regards| wishes)?|regards|sincerely|yours|cheers|many thanks"
    r"|(?:mit )?(?:freundlichen|besten|viele|liebe|herzliche) gr[üu](?:ß|ss)en?|saludos|un saludo|atentamente"
    r"|cordialement|bien à vous|amiti[ée]s|atenciosamente|cumprimentos|abraços)\b[^\n]{0,40}\Z",
    _FLAGS,
)

TAG = re.compile(
    r"\s{0,3}<(document|file|context|attachment|quote|blockquote|pasted|paste|email|mail|article|page"
    r"|html|transcript|text"
    r"|source|content|input)\b[^>\n]{0,300}>",
    _FLAGS,
)
"""A tag in which clients and people wrap what they paste."""

_NOUN = (
    r"(?:e-?mails?|mails?|messages?|texts?|letters?|articles?|pages?|posts?|tweets?|essays?|paragraphs?"
    r"|passages?|sentences?"
    r"|quotes?|transcripts?|documents?|contracts?|reviews?|logs?|outputs?|traceback|stack trace|error(?: message)?s?"
    r"|snippets?|poems?|stor(?:y|ies)|comments?|conversations?|chats?|threads?|drafts?|abstract|blog"
    r"|news|excerpt|speech)"
)
_NOT_REPLY = r"(?!\s+(?:it|that|your|yours|the (?:last|answer|reply|response))\b)"

_ABOUT_TEXT = (
    rf"translat\w*{_NOT_REPLY}|how (?:do|would|can) (?:i|you|we) say|summari[sz]\w*{_NOT_REPLY}|sum up|tl;?dr"
    rf"|proof-?read\w*{_NOT_REPLY}|paraphras\w*{_NOT_REPLY}|(?:reply|respond|react) to|explain (?:this"
    rf"|the following)\b"
    r"|what (?:does|do|did|is)\b.{0,80}\b(?:mean|say|about)|what (?:do|would) you think|classify|(?:what"
    r"|which) sentiment"
    rf"|(?:read|look at|check|see|consider) (?:this|the following)\b|sentiment of|fyi|forward(?:ed|ing)"
    r"|put (?:this|these|it|the \w+) (?:in|into) (?-i:[A-Z])\w+|into (?-i:[A-Z])\w+ (?:and|for|please|pls)\b"
    r"|(?:tell|make out|work out|see) (?:me )?from (?:this|these)\b"
    rf"|(?:got|received|found) (?:this|the following)|answer (?:this|the|his|her|their|my|an?) (?:\w+ )?{_NOUN}"
    r"|übersetz\w*|fass\w*\b.{0,60}\bzusammen|zusammenfass\w*|korrektur ?les\w*|korrigier\w*"
    r"|antworte\w* (?:auf|ihm|ihr)"
    r"|was (?:bedeutet|heißt|heisst)|erklär\w*|formulier\w*|schreib\w*\b.{0,60}\bum|wie sagt man"
    r"|tradu(?:ce|zca|cir|z|za|zir|cci[óo]n|is|ire|isez|ci|rre)\w*|res[úu]m\w*|corri(?:ge|ja|gir|ger|gez)\w*"
    r"|respond[ea]\w* (?:a|ao|à)|responde\b|qu[ée] (?:significa|quiere decir)|expli(?:ca|que|quez|car)\w*|reescrib\w*"
    r"|r[ée]ponds?(?:ez)? [àa]|que (?:veut dire|signifie)|r[ée][ée]cri\w*|reformul\w*|o que (?:significa|quer dizer)"
    r"|reescrev\w*|riassum\w*|correggi\w*|rispondi\w*|(?:cosa|che) (?:significa|vuol dire)|vertaal\w*"
    r"|vat\b.{0,60}\bsamen"
    r"|перевед\w*|перескаж\w*|резюмиру\w*|исправь\w*|ответь на|что (?:значит|означает)|объясни\w*"
    r"|przetłumacz\w*|streść\w*|çevir\w*|özetle\w*"
)
_CJK = (
    "翻译|总结|概括|润色|校对|回复|解释|什么意思|改写|訳して|翻訳|要約|校正|返信|説明して|どういう意味|書き直"
    "|번역|요약|ترجم|لخص|अनुवाद|सारांश"
)
_REVISES = (
    r"(?:rewrite|rephrase|reword|shorten|improve|correct|fix|polish|edit|review|format|convert|simplify"
    r"|analy[sz]e|rate"
    r"|grade|comment on|criti(?:que|ci[sz]e)|make)"
)

ABOUT_TEXT = re.compile(
    rf"(?:\b(?:{_ABOUT_TEXT})|{_CJK}"
    rf"|\b{_REVISES}\b.{{0,40}}?\b(?:this|these|my|the following|the|his|her|their|an?) (?:\w+ ){{0,2}}{_NOUN}\b)",
    _FLAGS,
)
"""A request to do something with a text that comes along, not with the reply."""

REVISES_THIS = re.compile(rf"\b{_REVISES} (?:this|these|the following)\b", _FLAGS)
"""A request that may be about a text that comes along or about the reply."""

INTRODUCES = re.compile(
    rf"(?<!\bmy )\b(?:this|the|an?|his|her|their|another|following|from|\w+['’]s) (?:\w+ ){{0,3}}{_NOUN}\b"
    r"|\b(?:mail|e-?mail|nachricht|text|fehler|correo|mensaje|texto|error|courriel|message|texte|erreur"
    r"|mensagem|erro)\b"
    r"(?=[^\n]{0,60}\Z)"
    r"|\b(?:it|this|that|here)(?:['’]s| is| was) (?:what\b.{0,40}|from|in|on) (?:the|your|our|my|his|her|their)\b",
    _FLAGS,
)
"""What a line with a colon at its end calls the text below."""

ABOVE = re.compile(
    r"\b(?:above|preceding|oben|obige[nrs]?|arriba|anterior|ci-dessus|acima)\b|[\^↑]|上面|以上|上記",
    _FLAGS,
)
POINTS = re.compile(
    r"\b(?:this|these|the following|below|dies\w*|folgend\w*|esto|este|esta|ceci|cet?|cette|isto)\b", _FLAGS
)

_ENTRY = (
    rf"(?:{_NOUN}|one|line|sentence|phrase|word|item|entry|row|ticket|card|caption|title|label|review|question|answer|form"
    r"|part|number|example|case|clip|voicemail|note|remark|complaint)"
)
SOURCED = re.compile(
    rf"\A\W*(?:(?:and|also|then|now|ok(?:ay)?|so)\W+)*"
    rf"(?:(?:this|that|another|next|new)(?: \w+)? (?!answer|reply|response|one\b|line|sentence|part|word){_ENTRY}"
    r"|(?:customer|client|guest|visitor|reader|patient|survey|tenant|student|parent|buyer|passenger|user)(?:['’]s)? "
    rf"{_ENTRY})\b(?: #?\d+)?(?: (?:to|for|from) \w+)?\W*\Z",
    _FLAGS,
)
"""A head that names whose text follows: "customer comment to file:", "and this ticket:"."""
_ORDER = r"(?:next|another|one more|second|third|fourth|fifth|last|final|following|other)"

CONTINUES = re.compile(
    rf"\W*(?:(?:and|now|then|ok(?:ay)?|so|also|here(?:'s| is)?|same for|likewise)\b\W*)*"
    rf"(?:(?:for |to )?(?:the |this |that |my |an? )?(?:\w+ )?(?:{_ORDER} )?(?:{_ENTRY}|{_ORDER})"
    r"(?:,? (?:(?:for|from|of|in|by|to) (?:the )?)?#?[\w-]{1,20})?(?: again| too| as well)?"
    r"|(?:into|in|to) \w+(?: too| as well)?|and|now|(?:and )?(?:another|next|more) \w+"
    r"|(?:(?:et|y|e) )?(?:la |le |el |a |o |il )?(?:phrase|ligne|mot|frase|línea|palabra|linha|riga)"
    r" (?:suivante?|siguiente|seguinte|successiva|prossima)"
    r"|(?:und )?(?:der |die |das )?(?:nächste[rs]?|zweite[rs]?) (?:satz|zeile|wort))\W*\Z",
    _FLAGS,
)
"""The whole head of a further text, after a request about one: "next line:", "and sentence 2:", "into French too:"."""

HANDLES_TEXT = re.compile(
    r"\b(?:tag|label|log|file|record|categori[sz]e|transcribe|type|note|enter|add|store|save|dub|subtitle)\b"
    r"|\b(?:in|into|to) (?:[A-Z]\w+|plain \w+)\b|\bmake (?:this|it) \w+:",
)
"""Further requests about a text than those of `ABOUT_TEXT`; only what comes after them is understood so."""

_VERBS = (
    r"(?:said|says|wrote|writes|told|tells|replied|replies|answered|asked|asks|commented|complained|complains|thinks"
    r"|thought|claims|claimed|texted|emailed|posted|mentioned|noted|objected|insists|reckons|reckoned|rates|rated"
    r"|sagte|sagt|meinte|meint|schrieb|schreibt|fragte|antwortete|gesagt|geschrieben|findet"
    r"|dijo|dice|escribi[óo]|escribe|respondi[óo]|pregunt[óo]|opina|coment[óo]|cree"
    r"|dit|[ée]crit|r[ée]pondu|pense|trouve|demand[ée]|disse|diz|escreveu|escreve|respondeu|perguntou|acha"
    r"|detto|scritto|scrive|zei|zegt|schreef|сказала?|пишет|написала?|говорит|считает)"
)
_BETWEEN = r"(?: (?:has|have|had|just|then|also|already|hat|ha|a|m'a|me|mir|me ha|still|now|recently)){0,2}"
_THING = (
    r"(?:app|book|browser|calculator|calendar|code|compiler|computer|docs|editor|linter|log|machine|map|notes|output|phone"
    r"|program|scripts?|system|terminal|tests?|textbook|watch)"
)
_OF_MINE = (
    rf"(?!\w+ {_THING}\b)"
    r"(?:my|our|his|her|their|mein|meine|unser|unsere|mi|nuestr[oa]|mon|ma|notre|meu|minha|nosso|nossa|mio|mia|mijn"
    r"|мой|моя|наш|наша) [\w'’-]{1,40}(?: [\w'’-]{1,40}){0,2}?"
)
_SOMEBODY = (
    r"(?:he|she|they|someone|somebody|everyone|people|er|jemand|él|ella|alguien|elle|quelqu['’]un|ele"
    r"|ela|algu[ée]m|lui|lei)"
)
_NAME = (
    r"(?-i:(?!(?:I|You|It|That|This|There|What|Who|Nobody|No|Not|We|Which|As|Like|Already|Just|Never|And|But|So|Then"
    r"|Ich|Du|Yo|Je|Tu|Eu|The|Your|Nothing|How|When|Where"
    # A reply is called so: "an AI wrote this" is a complaint and no report.
    r"|Why|Wikipedia|Google|Python|Excel|AI|KI|IA|Bot"
    r"|Robot|Roboter|Maschine|Computer|Automat)\b)[^\W\d_a-zа-я][\w'’-]{1,30}(?: [^\W\d_a-z][\w'’-]{1,30})?)"
)
_THE = r"(?:the|an?|der|die|el|la|le|un|une|o) [\w'’-]{1,40}(?: [\w'’-]{1,40})?"

REPORTED = re.compile(
    rf"(?:\A|[,;(\s])(?:{_OF_MINE}|\b{_SOMEBODY}|{_NAME}){_BETWEEN} {_VERBS}\b"
    # Another assistant is nobody's name, and may be asked, on the side.
    rf"|\b(?:an|the )other (?:chat ?)?(?:bot|ai|assistant|model|llm)\b[\w ']{{0,30}} {_VERBS}\b"
    # What something says of an assistant, or to one, is not the owner's opinion.
    r"|\bit (?:also |still |now |just |even )?(?:says?|said|reads?|claims?|states?|insists?)\b[^.!?\n]{0,40}"
    r"\b(?:assistants?|bots?|chat ?bots?|agents?|ai|answers?|repl(?:y|ies)|you (?:should|must|ought|were|got))\b"
    rf"|\b(?:according to|laut|selon|según|segundo) (?:{_OF_MINE}|him\b|her\b|them\b|{_NAME})",
    _FLAGS,
)
"""A sentence that reports what somebody else said."""

ANNOUNCES_SPEECH = re.compile(
    rf"\b(?:{_OF_MINE}|{_SOMEBODY}|{_NAME}|{_THE}){_BETWEEN} {_VERBS}\b[^:：\n]{{0,60}}\Z|(?:说|写道|问|と言った)\Z",
    _FLAGS,
)
"""What stands before the colon in front of somebody else's words."""

SPEECH_VERB = re.compile(rf"\b{_VERBS}\b[^\"“„«]{{0,30}}\Z|(?:说|写道)[:：]?\s*\Z", _FLAGS)
"""The end of a text behind which a quotation is somebody's words, however short."""

QUOTATION = re.compile(
    r"“[^“”]*+”|„[^„“”]*+[“”]|«[^«»]*+»|「[^「」]*+」|『[^『』]*+』"
    r"|\"(?:[^\"\n]|\n(?![ \t]*\n))*+\"|(?<![\w'])'(?:[^'\n]|(?<=\w)'(?=\w))*+'(?!\w)"
)
