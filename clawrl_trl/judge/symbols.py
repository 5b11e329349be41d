"""Signs of messages that are nothing but emoji.

The encoder's vocabulary knows no emoji and would take a skull for an approval. Of those that people use with one
meaning the sign is written down here; any other, or two that disagree, decides nothing: laughter, tears and an
upside-down smile may mean either.
"""

import unicodedata

GLAD = frozenset("👍👏🙌🎉❤🧡💛💚💙💜🩷🥰😍😊🙂😀😄😁🤩✅💯👌🔥✨🙏🥳💪🫶😎🏆⭐🌟💖💕😘🤗☺✔")
CROSS = frozenset("👎❌🤦🙄😡😠🤬😤😒🤮🤢😞😣😖😩😾💩🖕☹🙅🚫")
_GENDERS = frozenset("♀♂")
"""Parts of an emoji that shows a person."""


def is_symbols(message: str) -> bool:
    """Decide if a message has an emoji and neither a letter nor a digit."""
    kinds = [unicodedata.category(letter)[0] for letter in message]
    return "So" in map(unicodedata.category, message) and not {"L", "N"} & set(kinds)


def score_symbols(message: str) -> int | None:
    """Sign of a message of symbols: +1, -1, or `None` where it may mean either."""
    symbols = {letter for letter in message if unicodedata.category(letter) == "So"} - _GENDERS
    if symbols <= GLAD:
        return 1
    return -1 if symbols <= CROSS else None
