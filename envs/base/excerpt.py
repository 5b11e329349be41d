"""A long text, cut to its beginning and its end: what a model sees of a long result."""


def excerpt(text: str, head: int, tail: int) -> str:
    """Cut `text` to its first `head` and last `tail` characters, with a line that says how many are left out.

    Args:
        text (`str`): The text; returned as it is when it is short enough.
        head (`int`): Characters kept at the beginning.
        tail (`int`): Characters kept at the end.
    """
    lost = len(text) - head - tail
    if lost <= 0:
        return text
    return f"{text[:head]}\n[... {lost} characters left out ...]\n{text[len(text) - tail :]}"
