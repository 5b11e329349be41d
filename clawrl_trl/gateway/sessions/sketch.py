"""A sketch of a system prompt: small, and alike for prompts that differ by their stamps or by a few of their rules.

Clients put the date, the time or the list of their tools into the prompt, so two requests of one conversation seldom
have equal prompts; prompts of two agents have hardly a phrase in common. A sketch keeps the smallest hashes of a
prompt's three-word phrases (min-wise hashing: Broder, 1997), numbers and the names of days and months masked, a phrase
as often as it occurs. Of two sketches the share of common phrases (Jaccard) can be estimated.
"""

import re
from array import array
from collections import Counter
from functools import lru_cache
from itertools import islice
from zlib import crc32

Sketch = bytes
"""Up to `_KEPT` hashes, ascending, 4 bytes each."""

ALIKE_FROM = 0.5
"""Share of common phrases from which on two prompts count as one."""

_KEPT = 64
_MOST_CHARS = 2**15
_REMEMBERED = 128
_DATE = re.compile(
    r"\d+(?:st|nd|rd|th)?|[ap]m|mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:rs(?:day)?)?|fri(?:day)?"
    r"|sat(?:urday)?|sun(?:day)?|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
)
_WORD = re.compile(r"\d+(?:st|nd|rd|th)?|[a-z]+|[^\W\d_a-z]")


def sketch(prompt: str) -> Sketch:
    """The sketch of a prompt; of one beyond 32,768 characters, of its two ends."""
    if len(prompt) > _MOST_CHARS:
        prompt = prompt[: _MOST_CHARS // 2] + prompt[-_MOST_CHARS // 2 :]
    return _sketch(prompt)


@lru_cache(_REMEMBERED)
def _sketch(prompt: str) -> Sketch:
    # Masked and not left out, so that the phrases around a date stay phrases.
    words = ["#" if _DATE.fullmatch(word) else word for word in _WORD.findall(prompt.lower())]
    phrases = Counter(map(" ".join, zip(words, islice(words, 1, None), islice(words, 2, None), strict=False)))
    phrases = phrases or Counter([" ".join(words)])
    hashes = {
        crc32(phrase.encode("utf-8", "surrogatepass"), occurrence)
        for phrase, count in phrases.items()
        for occurrence in range(count)
    }
    return array("I", sorted(hashes)[:_KEPT]).tobytes()


def are_alike(first: Sketch, second: Sketch) -> bool:
    """Return whether two prompts are one but for stamps and small changes; two requests without a prompt are alike."""
    if first == second:
        return True
    first_hashes, second_hashes = set(array("I", first)), set(array("I", second))
    # Of both together: only hashes that would be kept of either can tell how much is common.
    smallest = sorted(first_hashes | second_hashes)[:_KEPT]
    common = sum(number in first_hashes and number in second_hashes for number in smallest)
    return common >= ALIKE_FROM * len(smallest)
