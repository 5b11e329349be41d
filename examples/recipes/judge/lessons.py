"""Train the reader of lessons, a head over the language model's embedding.

    PYTHONPATH=examples python -m recipes.judge.lessons --hold_out voices --threads 2 --output /tmp/lessons.safetensors
    PYTHONPATH=examples python -m recipes.judge.lessons --threads 2

`data/lessons` holds what owners said after replies, by four writers: half of it teaches how the reply should have
been, half reports, pastes, mocks or gives up, most of it in near-twins after the same reply.
"""

from collections.abc import Sequence

from clawrl_trl.judge.classifier.lesson_reader import HEAD, LEAST_LESSON
from recipes.judge import heads

WRITERS = ("home", "office", "voices", "work")


def load_lessons(writer: str) -> heads.Labelled:
    """One writer's texts (request, reply, message), and 1 where there is a lesson, shape `(n,)`."""
    return heads.label_rows(heads.read_rows("lessons", writer), lambda row: bool(row["lesson"]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure on the writer held out, if there is one, and write the head."""
    loaded = {writer: load_lessons(writer) for writer in WRITERS}
    heads.run_recipe("lessons", __doc__, HEAD, loaded, LEAST_LESSON, arguments)


if __name__ == "__main__":
    main()
