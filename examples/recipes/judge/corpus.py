"""The hand-written texts that examples are made of, as read from `data`.

`scenes_*.txt` hold a request, the reply and what its owner may say next; `generic.txt` messages that may follow any
reply; `lexicon.txt` slots with their fillers, and skeletons with slots. Reading keeps the files' order. The scenes in
`round2` to `round9` were written each after a training on those before; the last the language model alone has seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).parent / "data"
SIGNS = {"-": -1, "=": 0, "+": 1}


@dataclass
class Scene:
    """One exchange and what may be said after it.

    Args:
        domain: E.g. `coding` or `travel`.
        request, reply: What was asked and answered.
        messages: What the owner may say of this reply, each with its label.
        again: The request in other words: after this reply an objection, elsewhere a new task.
        tasks: Other requests of the same owner.
    """

    domain: str
    request: str
    reply: str = ""
    messages: list[tuple[str, int]] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)

    @property
    def asks(self) -> bool:
        """Whether the reply ends with a question of the agent's."""
        return self.reply.rstrip().endswith("?")


@dataclass(frozen=True)
class Skeleton:
    """A sentence with slots, and what it says of the reply."""

    label: int
    kind: str
    template: str


def read_scenes(rounds: int = 1) -> list[Scene]:
    """The scenes of so many rounds, those of the first round first."""
    folders = [DATA, *(DATA / f"round{number}" for number in range(2, rounds + 1))]
    scenes: list[Scene] = []
    for path in [path for folder in folders for path in sorted(folder.glob("scenes_*.txt"))]:
        in_reply = False
        for line in path.read_text(encoding="utf-8").splitlines():
            mark, _, text = line.partition(" ")
            if mark == "@":
                domain, _, request = text.partition(" | ")
                scenes.append(Scene(domain, request))
            elif mark == ">":
                scenes[-1].reply, in_reply = text, True
                continue
            elif mark in SIGNS:
                scenes[-1].messages.append((text, SIGNS[mark]))
            elif mark == "?":
                scenes[-1].again.append(text)
            elif mark == "^":
                scenes[-1].tasks.append(text.removeprefix("next: "))
            elif in_reply:
                # A reply may have several lines.
                scenes[-1].reply += "\n" + line
                continue
            else:
                raise ValueError(f"{path.name}: {line!r} begins with no mark")
            in_reply = False
    return scenes


def read_generic() -> list[tuple[str, int, str]]:
    """The messages that may follow any reply: text, label, kind."""
    rows = []
    kind, label = "", 0
    for line in _read_lines("generic.txt"):
        if line.startswith("# "):
            kind, sign = line[2:].split()
            label = int(sign)
        else:
            rows.append((line, label, kind))
    return rows


def read_lexicon() -> tuple[dict[str, list[str]], list[Skeleton]]:
    """Fillers by slot, and the skeletons."""
    slots: dict[str, list[str]] = {}
    skeletons: list[Skeleton] = []
    section = ""
    for line in _read_lines("lexicon.txt"):
        if line.startswith("# "):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif section == "skeletons":
            label, kind, template = line.split(" ", 2)
            skeletons.append(Skeleton(int(label), kind, template))
        else:
            slots.setdefault(section, []).append(line)
    return slots, skeletons


def _read_lines(name: str) -> Iterator[str]:
    return (line for line in (DATA / name).read_text(encoding="utf-8").splitlines() if line.strip())
