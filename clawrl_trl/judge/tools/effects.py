"""Results of calls that went through and had no effect, or none yet: no row changed, a dry run, a pod that crashes.

Such a call reports no failure, and approving it would teach to do nothing. Whether nothing was to be done can't be
told from the result, so that it only loses its approval.
"""

import re

from clawrl_trl.judge.tools.patterns import EDGE

_DONE = (
    r"(?:wrote|written|copied|moved|deleted|removed|dropped|updated|changed|inserted|sent|delivered|created|imported"
    r"|exported|processed|converted|affected|modified|uploaded|archived|replaced|applied|reclaimed|freed|saved|merged"
    r"|installed|scheduled|booked|executed|generated|indexed|synced|migrated|renamed|tagged|labell?ed)"
)
_NONE_DONE = re.compile(
    rf"""
      ^(?:UPDATE|DELETE|MERGE|COPY|INSERT\ 0)\ 0\s*$
    | \b{_DONE}\b[^\n\d]{{0,24}}(?<![\d.,])0(?![\d.,:/-]*[1-9])(?![\d:/-]|[a-f]\w)
    | (?<![\d.,:/-])0\ (?:\w+\ ){{0,2}}{_DONE}\b
    | ["'](?:\w+_)?{_DONE}(?:_?(?:count|rows|files|items))?["']\s*:\s*0\b
    | \b(?:updated|changed|deleted|inserted|affected)_?(?:rows|cells|files|items|records|count)\b\W{{0,3}}0\b
    | ^[^\n:]{{0,40}}\b(?:found|peaks|matches|results|hits|records|rows|items|segments|detections)\b
      [^\n:]{{0,24}}:\s*0\s*$
    """,
    re.I | re.X | re.M,
)
_SOME_DONE = re.compile(
    rf"\b{_DONE}\b[^\n\d]{{0,12}}(?<![\d.,])[1-9]|(?<![\d.,:/-])[1-9]\d*\ (?:\w+\ ){{0,2}}{_DONE}\b", re.I
)
"""A count beside which another one may be 0: three were added and none was changed."""
_NOTHING = re.compile(
    rf"""
      \b{_DONE}\s*[:=]\s*false\b
    | ["']?dry[_-]?run["']?\s*[:=]\s*true\b | \bdry[\s-]run\b.{{0,40}}\b(?:no(?:thing)?\b|would\b)
    | \bno\ tests\ (?:to\ run|ran|run|collected|found|were\ (?:run|found|executed))\b | \bcollected\ 0\ items\b
    | ["'](?:text|content|body|transcript|output)["']\s*:\s*(?:""|''|null)
    | ["'](?:hits|results|matches|items|rows|records|entries|documents)["']\s*:\s*\[\s*\]
    """,
    re.I | re.X,
)
_BROKEN = re.compile(
    r"\b(?:CrashLoopBackOff|ImagePullBackOff|ErrImagePull|OOMKilled|CreateContainerConfigError|InvalidImageName)\b"
    r"|#(?:REF|NAME\?|VALUE|DIV/0|NUM|NULL)[!\b]?|\bcircular dependency detected\b"
)
"""States and values that stand for something broken."""
_CORRECTS = re.compile(r"\b(?:did|do) you mean\b|\bclosest match(?:es)?\b|\bmeinten sie\b|\bquis dizer\b", re.I)
"""Words with which a tool asks for another argument."""
_GOES_ON = re.compile(
    r"\bsubmitted batch job\b"
    r"|\b(?:goal|request|order|job|task|command|application) (?:was )?(?:accepted|queued|held|dispatched)\b"
    r"|\bjob \w+ (?:is )?(?:held|queued)\b|(?:\b|_)remaining\b\W{1,3}\d|\bhttp/\d(?:\.\d)? 202\b"
    r"|\b(?:state|status|phase)\b\W{1,3}"
    r"(?:accepted|queued|pending|submitted|held|starting|\w+ating|\w+ing\b(?=\W*</))"
    r"|\bETA:? ~?\d|\b(?:rendering|uploading|downloading|encoding|training|building|processing"
    r"|provisioning|initiali[sz]ing)\b[^\n]{0,40}\b\d{1,2}(?:\.\d+)? ?%",
    re.I,
)


def had_no_effect(text: str) -> bool:
    """Return whether a result tells that nothing was done, that it is broken, or that it still goes on."""
    edges = text if len(text) <= 2 * EDGE else f"{text[:EDGE]}\n{text[-EDGE:]}"
    if _NONE_DONE.search(edges) and not _SOME_DONE.search(edges):
        return True
    return any(form.search(edges) for form in (_NOTHING, _BROKEN, _CORRECTS, _GOES_ON))
