"""Patterns in the sentences that hints are made of: what asks for something, and what only seems to."""

import re

COURTESY = re.compile(
    r"^\W*((thanks?( you)?( a lot| so much| very much)?|thank you"
    r"|thx|(great|good|nice)( (work|job|one|stuff))?|ok(ay)?|fine|hmm*|well|yes|sorry|hi|hello)"
    r"\b[\s,.!:;–-]*)+(but\b|though\b|however\b|yet\b)?[\s,]*",
    re.I,
)
BULLET = re.compile(r"^(?:\s*[-–*•>]+\s+)+")
SENDER = re.compile(r"^\s*\[[^\]\n]{1,40}\]:\s")
PLAIN_WORD = re.compile(r"[^\W\d_]+(?![\w(=/]|\.\w)")
DIRECTIVE = re.compile(
    r"""
      (?:^|[,;:–—]\s|\b(?:and|but|then|so)\s)                        # a clause that begins with an imperative
      \W{0,20}+(?:(?:no|nope|nearly|almost|oh|hm+|um|ugh|stop|wait|ok(?:ay)?|so|and|but|then|just|also|now|well|sorry|hey|please
        |pls|kindly|actually|again|instead|maybe|perhaps|always|try|(?:next|another)\ time|in\ (?:the\ )?future)\W++)*
      (?:accept|add|answer|ask|avoid|be|begin|book|bring|build|calculate|call|catch|change|check|choose|cite|close|compare
        |convert|count|create|cut|delete|don'?t|do|draft|drop|end|explain|filter|find|fix|follow|format|get|give|go|group
        |hide|import|include|indent|keep|leave|let|limit|link|list|log|look|lose|make|mention|merge|mind|move|name|never|note|open
        |order|pass|paste|pick|plan|point|prefer|print|put|query|quote|raise|read|redo|remove|rename|rephrase|replace|reply
        |respond|return|revert|reword|rewrite|round|run|save|say|search|send|set|shorten|show|simplify|skip|sort|speak
        |spell|split|start|stick|stop|summari[sz]e|swap|switch|take|talk|tell|test|think|translate|treat
        |try(?!\ (?:it\ )?again)
        |turn|undo|update|use|watch|wrap|write)\b
    | ^\W*(?:(?:so|and|but|please|then|ok(?:ay)?)\W+)?
      (?:no|not)\ (?!one\b|way\b|problem|idea|clue|thanks|worries|exactly|really|bad\b|sure|quite|even|my|your|it\b
        |that\b|this\b|no\b|what\b)\w+                              # "no bold"
    | \b(?:i|we)\ (?:still\ )?(?:don'?t|do\ not|didn'?t|can'?t|cannot)\ (?:want|like|need|ask|use|hand)\b
    | \b(?:i|we)(?:'d|\ would)?\ (?:(?:still|only)\ )?
      (?:rather|prefer|need(?:ed)?|want(?:ed)?|asked|said|wrote|meant|like|mean)\b
    | \b(?:looks?|sounds?|reads?|feels?)\ like\ (?:an?\ )?(?:chat\ ?bot|bot|robot|machine|ai)\b | \b\w+\ per\ \w+
    | \b(?:should(?:n't)?|must(?:n't)?|needs?|ha[sd]\ to|have\ to|supposed\ to|ought\ to|w(?:as|ere)\ to|let's)\b
    | (?<!\bi\ )(?<!\bwe\ )\bonly\b(?!\ because\b)
    | \b(?:i|we)\ only\ (?!\w+ed\b)\w                            # not "I only pasted what you gave me"
    | \b(?:instead|rather\ than|without|except|in\ place\ of|other\ way\ round|opposite)\b
    | \b(?:too|more|less|fewer|bit)\ \w+
    | \b(?:shorter|longer|simpler|softer|warmer|kinder|smaller|bigger|cheaper|earlier|later|clearer|closer|plainer)\b
    | \b(?:can|could|would)\ (?:you|it|we)\b | \b(?:please|pls|plz|kindly)\b
    | (?<!\bno),\ not\ (?!(?:after|since|even|once|until|before)\b)\S | \bnot\ \w+,\s
    | \bwould\ (?:suit|help)\b | \bwould\ be\ (?:better|easier|nicer?|kinder)\b | \bgrateful\ (?:for|if)\b
    | \b(?:would|will)\ do\b | \b(?:how|what)\ about\b
    """,
    re.I | re.X,
)
_SPEAKER = r"(?:i|we|he|she|people|everybody|everyone|nobody|mum|dad)"
TOLD = re.compile(
    rf"""
      \b{_SPEAKER}(?:['’](?:ve|d)|\ have|\ has|\ then|\ just|\ even|\ now)*\ had\ to\ (?!be\b)
    | \b(?:i|we|people|everybody|everyone|nobody)\ (?:should|could|must)(?:['’]ve|\ have|n['’]t\ have)\b
    | \bmust['’]ve\b
    | \b(?:must|ha(?:ve|s|d)\ to)\ (?:say|admit|confess|smile|laugh|wonder)\b | ^\W*must\ be\b
    | \b(?:i|we)(?:['’]m|['’]re|\ am|\ are|\ was|\ were)\ (?:\w+ly\ )?too\ \w+ | \b(?:it['’]s|it\ is|now)\ too\ late\b
    | \b(?:more|less|fewer)\b[^,.;:]{{0,30}}\bthan\ (?:i|we|he|she|they|me|before|ever|mine)\b | \bmore\ fool\ me\b
    | ^\W*should\ (?:i|we)\b.* | \b(?:please|pls)\ (?:check\ (?:\w+\ ){{0,2}}and\ )?try\ (?:it\ )?again\b.*
    | ^\W*(?:(?:much|a\ (?:bit|lot)|getting|still|ok(?:ay)?|hm+)\W+)*(?:closer|warmer|better|nearer)\W*\Z
    | ^\W*not\ (?:there|yet|now|here|close|done|working)\b
    | \b(?:would|could)\ you\ (?:want|enjoy|believe|pay|eat|buy|trust|wear|sign)\b
    | \brather\ not\ say\b | \bonly\ to\ \w+ | \bi(?:['’]d|\ would)\ like\ to\ (?:be|know)\b
    | \b(?:i|we)(?:['’]ve|\ have)?\ (?:only|just|simply|merely)
      \ (?:did|ran|sent|put|took|gave|wrote|(?!asked|wanted|needed)\w+ed)\b.*
    | \bwould\ be\ too\ (?:much|kind)\b | \bonly\b[^,.;:]{{0,24}}\b(?:later|earlier|worse)\b | \bonly\ almost\b
    | ^.*,\ (?:it|you)\ (?:says?|said|wrote)\W*\Z
    | \bnot\ (?:good|accepted|once|allowed|found|amused|impressed|pleased)\b
    """,
    re.I | re.X,
)
"""What an owner tells of that came of a reply, or of themselves: it has the words of a wish, and is none."""
VAGUE = re.compile(
    r"^\W*(?:(?:please|so|and|just|next time|now|also|a bit|maybe|kindly|try to"
    r"|you (?:need|should|have to|must)(?: to)?)[\s,]+)*"
    r"(?:be (?:a (?:bit|little) )?(?:more )?careful\b|(?:be|do) better\b|try harder\b|pay (?:more )?attention\b"
    r"|(?:concentrate|focus|think)\b(?! \w+ing\b| (?:on|about|of)\b)"
    r"|(?:(?:once|one) more(?: time)?|(?:try |do it |do that )?(?:once )?again)(?=(?: please| pls)?\W*\Z)"
    r"|take (?:more )?care\b|read (?:it |that |what \w+ \w+ )?(?:properly|again)\b)[^,;:]{0,40}\Z",
    re.I,
)
"""A wish for more care, attention or another try that doesn't say how: it teaches nothing when it stands alone."""
DOUBT = re.compile(
    r"\b(?:are|r) (?:you|u|we) (?:really |quite )?(?:sure|certain|positive)\b|\b(?:you|u) sure\b[^.!]*\?"
    r"|^\W*you (?:did|have) (?!not\b|to\b)\w+[^.!]*\?\W*\Z|\btoo (?:good|perfect)\b(?! for\b)",
    re.I,
)
"""Who doubts a reply asks for nothing yet: it may be right."""
GIVING_UP = re.compile(
    r"\b(?:never ?mind|forget (?:it|about it|this)|drop(?:ping)? it|g[ia]ve up|giving up|doesn'?t matter|don'?t bother"
    r"|no use for|i'?ll (?:just )?(?:do|ask|ring|call|fix|write|use|try|find|google|look|figure|handle)\b"
    r"|i'?m (?:asking|calling|done|going to (?:do|ask)))",
    re.I,
)
"""Who gives up tells no wish: what is announced is the owner's own plan."""
OWN_PLAN = re.compile(
    r"^\W*(?:(?:ok(?:ay)?|so|well|fine|then|and|but)\W+)*(?:i|we)(?:['’]ll| will|['’]m going to)\b", re.I
)
"""What the owner is going to do is nothing that the reply should have done."""
MOCK_PRAISE = re.compile(
    r"^\W*(?:(?:oh|ah|wow|well|mm+|yes|how|what an?|just|so|right|ok(?:ay)?)\W+)*"
    r"(?:splendid|brilliant|wonderful|great|perfect|lovely|fantastic|genius|bravo|superb|marvell?ous|excellent|amazing"
    r"|fabulous|charming|beautiful|awesome|impressive|congrat\w*|well done)\b",
    re.I,
)
"""How an objection begins that is ironic, unless it asks for something (`ASKS_ON`): its wishes are mocking, too."""
ASKS_ON = re.compile(
    r"\b(?:but|though|tho|however|only|just|except|please|pls|(?:can|could) (?:you|u)|next time|now)\b", re.I
)
QUESTION = re.compile(r"\w[\"')]{0,2}\?[\"') .!?]*\Z")
ASKS_SOMEBODY = re.compile(
    r"\b(?:(?:can|could|would|will|won['’]t|couldn['’]t) (?:you|u|we|it|this|that|the)|how about|what about|please|pls"
    r"|instead)\b",
    re.I,
)
RAW_ERROR = re.compile(
    r"""
      ^\W*(?:\w+\.)*\w*(?:Error|Exception|Warning)\b | command\ not\ found | \ATraceback\b | ^\w+:\ \S+:\s
    | ^\W*(?i:error|fatal|panic|warning|failed|failure|uncaught|exception|assertion|aborted|denied|invalid)\b
      [^.!?]{0,30}[:\[(!]
    | ^\W*(?i:run-?time|fatal|syntax|type|internal|server|parse|compile\w*|link\w*)[\ -](?i:error)\b[^.!?]{0,12}[:\[(!]
    | ^\W*(?i:undefined|unexpected|unsupported|unrecogni[sz]ed)\ \w+(?:\ \w+)?\W*\Z | \bl\.\d+\b
    | ^\W*(?:\w+\ ){1,3}(?i:failed|denied|refused|aborted)\W*(?:\(|:|\Z)
    | (?i:\berr(?:no|or\ code)\b|\bexit(?:ed\ with)?\ (?:code|status):?\ \d)
    | (?i:\bno\ such\ (?:file|table|column|module)\b|\bpermission\ denied\b|\bsegmentation\ fault\b)
    | (?i:\bis\ not\ (?:defined|a\ function|recogni[sz]ed|iterable|subscriptable)\b)
    | (?i:\bcan(?:no|')t\ (?:find|open|resolve|import|read|convert)\ (?:module|file|name|symbol|propert))
    | ^\W*(?i:line)\ \d+:\s | ^\s*(?:\$|>>>)\s
    | :\d+:\d+\b | \b(?:line|ln)\ \d+,?\ (?:col|in)\b | \b[A-Z]{2,6}-?\d{3,}\b:? | \b0x[0-9a-fA-F]{4,}
    | \b[45]\d\d\ (?:Bad|Unauthori[sz]ed|Forbidden|Not\ Found|Request|Internal|Service|Gateway|Too\ Many)\b
    """,
    re.X,
)
"""A sentence of a machine's, pasted: what it demands ("must be a string") is no wish of the owner's."""
RESERVATION = re.compile(r"^(?:but keep|(?:but )?(?:i|we) still)\b|\ball the same\W*$", re.I)
NEXT_TIME = re.compile(
    r"\b((the )?next (time|one|reply|answer)|another time|in (the )?future|going forward|always|never"
    r"|could (have been|be)|would (have been|be) (nice|better|even|good|great)|(i'd|i would|i) (prefer|rather))\b",
    re.I,
)
COURTEOUS = frozenset(["please", "pls", "plz", "kindly", "can", "could", "would", "you"])
"""What a request that is repeated has more than the first time."""
