"""Train the reader of acceptance, a head over a middle layer of the language model.

    PYTHONPATH=examples python -m recipes.judge.acceptance --hold_out chat --threads 2 --output /tmp/head.safetensors
    PYTHONPATH=examples python -m recipes.judge.acceptance --threads 2
    PYTHONPATH=examples python -m recipes.judge.acceptance --threads 2 --go_on

`data/acceptance` holds what owners said after replies, by 22 writers. Of each request there are two replies, one that
did what was asked and one that did not, and four to eight messages. Six writers wrote praise with a wish and gruff
praise after the first, kind words and mockery after the second. Eight wrote praise that corrects in the same breath
and corrections that show that the reply is used, after the first, kind words after the second, and mockery or gruff
praise. Many of the praises and the kind words are nearly the same. Eight wrote verdicts of all kinds, dry praise and
calm refusals among them, and beside them what says nothing of the reply, which this reader isn't asked about.

The head that ships was fitted to seventeen writers, and went on from there with the newest five.
"""

from collections.abc import Sequence

from clawrl_trl.judge.classifier.acceptance_reader import HEAD
from recipes.judge import heads

WISH_WRITERS = ("chat", "code", "creative", "home", "office", "trades")
CORRECTION_WRITERS = ("days", "errands", "leisure", "letters", "shops", "software", "study", "tables")
VERDICT_WRITERS = ("desks", "makers", "pens")
NEWEST_WRITERS = ("counters", "fields", "households", "stages", "workshops")
"""They wrote verdicts of all kinds, too, wishes among them."""
WRITERS = (*WISH_WRITERS, *CORRECTION_WRITERS, *VERDICT_WRITERS, *NEWEST_WRITERS)


def load_reactions(writer: str) -> heads.Labelled:
    """One writer's texts (request, reply, message), and 1 where the reply was taken, shape `(n,)`."""
    rows = [row for row in heads.read_rows("acceptance", writer) if row["label"]]
    return heads.label_rows(rows, lambda row: row["label"] == 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure on the writer held out, if there is one, and write the head."""
    loaded = {writer: load_reactions(writer) for writer in WRITERS}
    heads.run_recipe("acceptance", __doc__, HEAD, loaded, 0.5, arguments, NEWEST_WRITERS)


if __name__ == "__main__":
    main()
