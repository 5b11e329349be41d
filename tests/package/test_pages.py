"""The pages hold together: links lead somewhere, the index has every page, commands and flags exist."""

import re
import runpy
import sys
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from clawrl_trl.cli.main import main as run_clawrl

# One worker, for every command's help imports what it needs.
pytestmark = pytest.mark.xdist_group("pages")

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FLAG = re.compile(r"(?<![\w-])--[a-z]\w*(?=[\s=`|,.)]|$)")
SPAN = re.compile(r"`([^`\n]+)`")
README_LINES = 110
COMMANDS = (
    *("serve", "doctor", "sessions", "inspect", "explain", "policies", "rollback", "push", "import", "forget"),
    *("presets", "env-server", "tasks", "judge", "compact"),
)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {path}#{anchor}"


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert [page.name for page in DOCS if page.name != "README.md" and f"]({page.name})" not in index] == []


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


def test_the_glossary_is_sorted_and_has_each_term_once() -> None:
    rows = re.findall(r"^\| (.+?) \| ", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)[1:]
    assert rows == sorted(set(rows), key=str.lower) and len(rows) > 60


@cache
def help_texts() -> dict[str, str]:
    """Return what each command prints for `--help`; the training script is `train`."""
    script = ROOT / "examples" / "train.py"
    texts = {name: read_help(name) for name in COMMANDS} | {"clawrl": read_help()}
    return texts | {"train": read_help(script=script)}


def read_help(*words: str, script: Path | None = None) -> str:
    """Return what `clawrl`, or a script, prints when it is asked for help; in this process, which imports once."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed, suppress(SystemExit):
        patch.setattr(sys, "argv", [str(script or "clawrl"), *words, "--help"])
        if script:
            runpy.run_path(str(script), run_name="__main__")
        else:
            run_clawrl()
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    named = {
        name for command in commands_of(page.read_text()) for name in re.findall(r"^clawrl ([a-z][\w-]*)", command)
    }
    assert named <= set(COMMANDS), named - set(COMMANDS)
    assert all(re.search(rf"^ +{name}\b", help_texts()["clawrl"], re.MULTILINE) for name in named)


def commands_of(text: str) -> list[str]:
    """Return the lines of bash blocks, and the code spans."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()] + SPAN.findall(text)


OF_OTHERS = frozenset(
    {
        "--config",  # TRL's parser takes it before it knows of flags
        "--num_processes",  # accelerate launch
        "--config_file",
        "--multi_gpu",
        "--compile",  # the bundled model's recipe
        "--seed",
        "--correctness_loss",  # benchmarks/check_run.py
        "--gpu_memory_gb",  # clawrl doctor, for a plan
        "--max_steps",  # old names, which go on with a warning
        "--num_generations",
    }
)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_flags_exist(page: Path) -> None:
    """Flags of ours have underscores; those of vLLM, accelerate and pip, which have dashes, are left alone."""
    known = set(re.findall(r"--[a-z]\w*", " ".join(help_texts().values()))) | OF_OTHERS
    used = {flag for command in commands_of(page.read_text()) for flag in FLAG.findall(command)}
    assert {flag for flag in used if "_" in flag} <= known, used - known
