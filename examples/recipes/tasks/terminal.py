"""The terminal tasks in `examples/tasks/terminal`: made from a seed, each with tests and an oracle.

Step 1 is one short command, step 2 a pipeline or two to four commands, step 3 a small program, a repair, or a
conversation with a running one. No task stands in both splits. A test counts nothing that holds before the agent has
done anything, so an agent that does nothing gets the outcome -1.

```bash
PYTHONPATH=examples python -m recipes.tasks.terminal examples/tasks/terminal
```
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from clawrl_trl.envs.terminal.task_folder import TaskFolder, save_tasks
from recipes.tasks.splits import SEED, SPLITS, TRIES, read_folder

STEPS = ("easy", "medium", "hard")

LETTERS = "abcdef"
WORDS = ["red", "blue", "green", "cat", "dog", "bird", "tree", "book", "cup", "hat", "key", "box"]
NAMES = ["Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Max", "Lea"]
FRUIT = ["apple", "pear", "plum", "fig", "lemon", "melon", "grape", "cherry"]


@dataclass(frozen=True)
class DraftTask:
    """A task before it has a name.

    Attributes:
        kind (`str`): What sort of task it is.
        instruction (`str`): What the agent is told.
        solution (`str`): The oracle, in bash.
        checks (`Sequence[str]`): Conditions in bash, none of which holds at the beginning; `program` runs what the
            agent wrote.
        files (`Mapping[str, str]`): What is in the work folder at the beginning.
    """

    kind: str
    instruction: str
    solution: str
    checks: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)


def check_file(file: str, text: object) -> str:
    """A condition: a file's text, but for spaces at its end."""
    return f"""[ "$(cat {file})" = '{text}' ]"""


def check_output(command: str, text: object) -> str:
    """A condition: what a command prints."""
    return f"""[ "$({command})" = '{text}' ]"""


def draw_files(rng: random.Random, count: int) -> list[str]:
    return [f"{letter}.txt" for letter in rng.sample(LETTERS, count)]


def draw_numbers(rng: random.Random, count: int, most: int = 99) -> list[int]:
    return [rng.randint(1, most) for _ in range(count)]


def join_lines(items: Sequence[object]) -> str:
    return "".join(f"{item}\n" for item in items)


# Step 1: one short command


def write(rng: random.Random) -> DraftTask:
    (file,), number = draw_files(rng, 1), rng.randint(0, 9)
    return DraftTask("write", f"Write {number} to {file}.", f"echo {number} > {file}", [check_file(file, number)])


def append(rng: random.Random) -> DraftTask:
    (file,), first, number = draw_files(rng, 1), rng.randint(0, 9), rng.randint(0, 9)
    check = f"""[ "$(cat {file})" = $'{first}\\n{number}' ]"""
    instruction = f"Add {number} to the end of {file}."
    return DraftTask("append", instruction, f"echo {number} >> {file}", [check], {file: f"{first}\n"})


def folder(rng: random.Random) -> DraftTask:
    word = rng.choice(WORDS)
    return DraftTask("folder", f"Make the folder {word}.", f"mkdir {word}", [f"[ -d {word} ]"])


def touch(rng: random.Random) -> DraftTask:
    word = rng.choice(WORDS)
    return DraftTask("touch", f"Make the empty file {word}.txt.", f"touch {word}.txt", [f"[ -f {word}.txt ]"])


def delete(rng: random.Random) -> DraftTask:
    doomed, spared = (f"{word}.txt" for word in rng.sample(WORDS, 2))
    files = {doomed: f"{rng.randint(0, 9)}\n", spared: f"{rng.randint(0, 9)}\n"}
    return DraftTask("delete", f"Delete {doomed}.", f"rm {doomed}", [f"[ ! -e {doomed} ] && [ -e {spared} ]"], files)


def copy(rng: random.Random) -> DraftTask:
    source, target = draw_files(rng, 2)
    number = rng.randint(0, 9)
    check = f"{check_file(target, number)} && {check_file(source, number)}"
    return DraftTask("copy", f"Copy {source} to {target}.", f"cp {source} {target}", [check], {source: f"{number}\n"})


def rename(rng: random.Random) -> DraftTask:
    source, target = draw_files(rng, 2)
    number = rng.randint(0, 9)
    check = f"{check_file(target, number)} && [ ! -e {source} ]"
    return DraftTask(
        "rename", f"Rename {source} to {target}.", f"mv {source} {target}", [check], {source: f"{number}\n"}
    )


# Step 2: a pipeline or a few commands


def count_matches(rng: random.Random) -> DraftTask:
    words = rng.sample(FRUIT, 3)
    rows = [f"{rng.choice(words)} {rng.randint(1, 9)}" for _ in range(rng.randint(12, 25))]
    goal = words[0]
    count = sum(row.startswith(goal) for row in rows)
    instruction = f"How many lines of list.txt have the word {goal}? Write the number to count.txt."
    return DraftTask(
        "count",
        instruction,
        f"grep -c {goal} list.txt > count.txt",
        [check_file("count.txt", count)],
        _make_list_file(rows),
    )


def add_up(rng: random.Random) -> DraftTask:
    values = draw_numbers(rng, rng.randint(5, 12))
    instruction = "list.txt has a number on each line. Write their sum to sum.txt."
    solve = "awk '{s += $1} END {print s}' list.txt > sum.txt"
    return DraftTask("sum", instruction, solve, [check_file("sum.txt", sum(values))], _make_list_file(values))


def sort_lines(rng: random.Random) -> DraftTask:
    values = rng.sample(range(1, 999), 8)
    backwards = rng.random() < 0.5
    way = "largest" if backwards else "smallest"
    instruction = f"Sort the numbers of list.txt, the {way} first, and write them to sorted.txt."
    ordered = "\\n".join(map(str, sorted(values, reverse=backwards)))
    check = f"""[ "$(cat sorted.txt)" = $'{ordered}' ]"""
    return DraftTask(
        "sort", instruction, f"sort -n{'r' * backwards} list.txt > sorted.txt", [check], _make_list_file(values)
    )


def replace_word(rng: random.Random) -> DraftTask:
    old, new, other = rng.sample(WORDS, 3)
    rows = [f"{rng.choice(NAMES)} has a {rng.choice([old, other])}." for _ in range(6)] + [f"Ann has a {old}."]
    after = "\\n".join(rows).replace(old, new)
    instruction = f"In story.txt, replace the word {old} by {new} everywhere."
    check = f"""[ "$(cat story.txt)" = $'{after}' ]"""
    return DraftTask(
        "replace", instruction, f"sed -i 's/{old}/{new}/g' story.txt", [check], {"story.txt": join_lines(rows)}
    )


def nth_line(rng: random.Random) -> DraftTask:
    rows = rng.sample(FRUIT, 7)
    place = rng.randint(2, 7)
    instruction = f"Write line {place} of list.txt to line.txt."
    solve = f"sed -n {place}p list.txt > line.txt"
    return DraftTask("line", instruction, solve, [check_file("line.txt", rows[place - 1])], _make_list_file(rows))


def find_file(rng: random.Random) -> DraftTask:
    folders = rng.sample(WORDS, 4)
    code = rng.randint(1000, 9999)
    goal = rng.choice(folders)
    files = {f"{name}/note.txt": f"nothing in {name}\n" for name in folders}
    files[f"{goal}/note.txt"] = f"the code is {code}\n"
    instruction = "One of the files note.txt in the folders here has a code. Write the code to code.txt."
    solve = "grep -rhoE '[0-9]{4}' --include=note.txt . > found && mv found code.txt"
    return DraftTask("find", instruction, solve, [check_file("code.txt", code)], files)


def rename_all(rng: random.Random) -> DraftTask:
    words = rng.sample(WORDS, 4)
    files = {f"{word}.txt": f"{word}\n" for word in words}
    checks = [f"{check_file(f'{word}.md', word)} && [ ! -e {word}.txt ]" for word in words]
    solve = 'for file in *.txt; do mv "$file" "${file%.txt}.md"; done'
    return DraftTask(
        "rename-all", "Rename every file here that ends in .txt so that it ends in .md.", solve, checks, files
    )


def make_script(rng: random.Random) -> DraftTask:
    word = rng.choice(WORDS)
    instruction = f"Write a bash script {word}.sh that prints {word}. It must be executable: ./{word}.sh"
    solve = f"printf '#!/bin/bash\\necho {word}\\n' > {word}.sh && chmod +x {word}.sh"
    return DraftTask("script", instruction, solve, [check_output(f"program ./{word}.sh", word)])


# Step 3: programs, repairs, conversations


def repair(rng: random.Random) -> DraftTask:
    file = f"{rng.choice(WORDS)}.py"
    what, wrong, right, spoilt, true = rng.choice(_BUGS)
    program = f"import math\nimport sys\n\nnumbers = [int(word) for word in sys.argv[1:]]\nprint({wrong})\n"
    instruction = f"The program {file} should print the {what} of its arguments, but it is wrong. Repair it."
    cases = [case for case in (draw_numbers(rng, rng.randint(3, 6)) for _ in range(3)) if spoilt(case) != true(case)]
    checks = [check_output(f"program python3 {file} {' '.join(map(str, case))}", true(case)) for case in cases]
    return DraftTask("repair", instruction, f"sed -i 's|^print.*|print({right})|' {file}", checks, {file: program})


_Function = Callable[[list[int]], int]
_BUGS: list[tuple[str, str, str, _Function, _Function]] = [
    ("sum", "sum(numbers[1:])", "sum(numbers)", lambda n: sum(n[1:]), sum),
    ("largest", "min(numbers)", "max(numbers)", min, max),
    ("smallest", "max(numbers)", "min(numbers)", max, min),
    ("number", "len(numbers) - 1", "len(numbers)", lambda n: len(n) - 1, len),
    ("product", "sum(numbers)", "math.prod(numbers)", sum, math.prod),
    ("last", "numbers[0]", "numbers[-1]", lambda n: n[0], lambda n: n[-1]),
]


def report(rng: random.Random) -> DraftTask:
    people = rng.sample(NAMES, 3)
    rows = [(rng.choice(people), rng.randint(1, 50)) for _ in range(rng.randint(12, 20))]
    rows += [(person, rng.randint(1, 50)) for person in people]
    middle = len(rows) // 2
    files = {
        f"{month}.csv": join_lines(["name,amount", *(f"{name},{amount}" for name, amount in part)])
        for month, part in (("may", rows[:middle]), ("june", rows[middle:]))
    }
    totals = {person: sum(amount for name, amount in rows if name == person) for person in sorted(people)}
    instruction = (
        "may.csv and june.csv list who spent how much. Write report.csv with a line name,total for each person, "
        "over both files, sorted by name, with no header."
    )
    solve = "tail -qn +2 may.csv june.csv | awk -F, '{s[$1] += $2} END {for (n in s) print n \",\" s[n]}' | sort > r"
    checks = [f"grep -qx '{person},{total}' report.csv" for person, total in totals.items()]
    whole = "\\n".join(f"{person},{total}" for person, total in totals.items())
    checks.append(f"""[ "$(cat report.csv)" = $'{whole}' ]""")
    return DraftTask("report", instruction, f"{solve} && mv r report.csv", checks, files)


def write_program(rng: random.Random) -> DraftTask:
    what, code, function = rng.choice(_PROGRAMS)
    words = rng.sample(FRUIT, 3)
    file = f"{rng.choice(WORDS)}.py"
    instruction = f"Write a Python program {file} that takes a word as its argument and prints {what}."
    solve = f"printf 'import sys\\nw = sys.argv[1]\\nprint({code})\\n' > {file}"
    return DraftTask(
        "program",
        instruction,
        solve,
        [check_output(f"program python3 {file} {word}", function(word)) for word in words],
    )


_PROGRAMS: list[tuple[str, str, Callable[[str], object]]] = [
    ("it backwards", "w[::-1]", lambda word: word[::-1]),
    ("it in capitals", "w.upper()", str.upper),
    ("how many letters it has", "len(w)", len),
    ("its letters in the order of the alphabet", '"".join(sorted(w))', lambda word: "".join(sorted(word))),
    ("it twice, with a dash between", 'w + "-" + w', lambda word: f"{word}-{word}"),
    ("its first letter", "w[0]", lambda word: word[0]),
    ("its last letter", "w[-1]", lambda word: word[-1]),
]


def ask(rng: random.Random) -> DraftTask:
    first, second, code = rng.randint(10, 99), rng.randint(10, 99), rng.randint(1000, 9999)
    program = (
        f"answer = input('How much is {first} + {second}? ')\n"
        f"if answer.strip() != str({first} + {second}):\n    raise SystemExit('wrong')\n"
        f"name = input('And who asks? ')\nopen('ticket.txt', 'w').write(f'{{name.strip()}} {code}\\n')\n"
    )
    name = rng.choice(NAMES)
    instruction = f"Run python3 quiz.py and answer what it asks; your name is {name}. It writes ticket.txt."
    solve = f"printf '{first + second}\\n{name}\\n' | python3 quiz.py"
    return DraftTask("quiz", instruction, solve, [check_file("ticket.txt", f"{name} {code}")], {"quiz.py": program})


def edit_json(rng: random.Random) -> DraftTask:
    port, new = rng.randint(2000, 2999), rng.randint(3000, 3999)
    word, user = rng.choice(WORDS), rng.choice(NAMES)
    config = f'{{\n  "name": "{word}",\n  "server": {{"port": {port}, "users": ["Zoe"]}}\n}}\n'
    instruction = f"In config.json, set the server's port to {new} and add {user} to its users. Keep the rest."
    read = "program python3 -I -c \"import json; c = json.load(open('config.json')); print(c['name'], {})\""
    checks = [
        check_output(read.format("c['server']['port']"), f"{word} {new}"),
        check_output(read.format("*c['server']['users']"), f"{word} Zoe {user}"),
    ]
    solve = f'sed -i \'s/{port}/{new}/; s/"Zoe"/"Zoe", "{user}"/\' config.json'
    return DraftTask("config", instruction, solve, checks, {"config.json": config})


def pack(rng: random.Random) -> DraftTask:
    words = rng.sample(WORDS, 4)
    big = words[:2]
    files = {f"in/{word}.txt": (word + "\n") * (60 if word in big else 2) for word in words}
    instruction = "Pack the files of the folder in that have more than 50 lines, and no others, into big.tar.gz."
    solve = "cd in && tar czf ../big.tar.gz $(wc -l *.txt | awk '$1 > 50 && $2 != \"total\" {print $2}')"
    listed = "tar tzf big.tar.gz | grep -o '[^/]*$' | sort | tr '\\n' ' '"
    check = check_output(listed, " ".join(sorted(f"{word}.txt" for word in big)) + " ")
    return DraftTask("pack", instruction, solve, [check], files)


MAKERS: dict[str, list[Callable[[random.Random], DraftTask]]] = {
    "easy": [write, append, folder, touch, delete, copy, rename],
    "medium": [count_matches, add_up, sort_lines, replace_word, nth_line, find_file, rename_all, make_script],
    "hard": [repair, report, write_program, ask, edit_json, pack],
}


def _make_list_file(rows: Sequence[object]) -> dict[str, str]:
    return {"list.txt": join_lines(rows)}


Key = tuple[str, tuple[tuple[str, str], ...]]


def generate(seed: int = SEED) -> dict[str, list[TaskFolder]]:
    """The tasks of each split.

    Args:
        seed (`int`, *optional*, defaults to `SEED`): What they are made from.
    """
    rng = random.Random(seed)
    keys: set[Key] = set()
    splits: dict[str, list[TaskFolder]] = {split: [] for split in SPLITS}
    for number, step in enumerate(STEPS, 1):
        for split, count in SPLITS.items():
            for place in range(count):
                maker = MAKERS[step][place % len(MAKERS[step])]
                draft = _draw_new_task(maker, rng, keys)
                splits[split].append(make_folder(f"{split}-{number}-{place:02d}-{draft.kind}", step, draft))
    return splits


def _draw_new_task(maker: Callable[[random.Random], DraftTask], rng: random.Random, keys: set[Key]) -> DraftTask:
    """A task that differs from all before it in what it says or, beyond the first step, in what it finds."""
    for _ in range(TRIES):
        draft = maker(rng)
        key = (draft.instruction, () if maker in MAKERS["easy"] else tuple(sorted(draft.files.items())))
        if key not in keys and draft.checks:
            keys.add(key)
            return draft
    raise ValueError(f"{maker.__name__} can't make as many different tasks as are asked for")


def make_folder(name: str, step: str, draft: DraftTask) -> TaskFolder:
    """The task in the layout of Terminal-Bench."""
    dockerfile = "FROM python:3.11-slim\nWORKDIR /app\n" + ("COPY files/ ./\n" if draft.files else "")
    checks = "".join(f"{check} && n=$((n + 1))\n" for check in draft.checks)
    files = {
        "instruction.md": f"{draft.instruction}\n",
        "task.toml": f'version = "1.0"\n[metadata]\ndifficulty = "{step}"\n[verifier]\ntimeout_sec = 30.0\n',
        "environment/Dockerfile": dockerfile,
        **{f"environment/files/{path}": text for path, text in draft.files.items()},
        "tests/test.sh": _TEST.format(checks=checks, count=len(draft.checks)),
        "solution/solve.sh": f"#!/bin/bash\ncd /app\n{draft.solution}\n",
    }
    return TaskFolder(name, {path: text.encode() for path, text in files.items()})


_TEST = """#!/bin/bash
cd /app
n=0
{checks}echo "$((n * 10**15 / {count}))e-15" > /logs/verifier/reward.txt
"""


def main() -> None:
    """Write the splits into the folder that the command line names."""
    folder = read_folder(__doc__)
    folder.mkdir(parents=True, exist_ok=True)
    for split, tasks in generate().items():
        save_tasks(tasks, folder / f"{split}.jsonl")


if __name__ == "__main__":
    main()
