"""Lines of a JSON-lines file.

JSON leaves characters such as U+2028 and U+0085 as they are inside a text, and `str.splitlines` cuts there too.
"""


def split_lines(text: str) -> list[str]:
    """Split a text at its line feeds, and nowhere else; blank lines stay, for they count where lines are numbered.

    Args:
        text (`str`): Content of a file of JSON lines.
    """
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]
