"""Word lists, written as one string with bars between: `split_options("red|green")` is `("red", "green")`."""


def split_options(text: str) -> tuple[str, ...]:
    """The alternatives in `text`, which are separated by "|"; spaces count."""
    return tuple(text.split("|"))
