"""The persistent shell."""

from collections.abc import Iterator

import pytest

from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.sandbox.sandbox import Sandbox
from clawrl_trl.envs.terminal.shell import MAX_OUTPUT_BYTES, CommandFolder, Shell, ShellBroken

TROUBLE = diagnose_bubblewrap()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]
LONG = 120.0
SHORT = 0.5


@pytest.fixture
def shell() -> Iterator[Shell]:
    commands = CommandFolder()
    with Sandbox(binds=[commands.bind], limits=Limits(memory_mb=128, disk_mb=32)) as sandbox:
        yield Shell(sandbox, commands)
    commands.close()


def output(shell: Shell, command: str) -> str:
    return shell.execute(command, LONG).text


def view_until(shell: Shell, expected: str) -> str:
    """View the shell until a text shows; returns all that it printed."""
    text = ""
    for _ in range(200):
        text += shell.view(SHORT).text
        if expected in text:
            return text
    raise AssertionError(f"{expected!r} never showed; what did: {text!r}")


def test_it_remembers(shell: Shell) -> None:
    output(shell, "mkdir d && cd d && x=5 && export y=6 && f() { echo f$1; }")
    assert output(shell, "pwd; echo $x; bash -c 'echo $y'; f 7") == "/work/d\n5\n6\nf7\n"


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false", 1), ("(exit 42)", 42), ("nosuchcommand", 127)])
def test_exit_codes(shell: Shell, command: str, code: int) -> None:
    assert shell.execute(command, LONG).exit_code == code
    assert output(shell, "echo $?") == f"{code}\n"


def test_many_lines_are_one_command(shell: Shell) -> None:
    result = shell.execute("for i in 1 2\ndo\n  echo $i\ndone\ncat <<E\na\tb 'c' \"d\" $((1 + 1))\nE\nfalse\n", LONG)
    assert result.text == "1\n2\na\tb 'c' \"d\" 2\n" and result.exit_code == 1


def test_a_command_longer_than_a_line_of_the_terminal(shell: Shell) -> None:
    text = "x" * 50_000
    assert output(shell, f"echo {text} | wc -c") == "50001\n"


def test_a_mistake_in_the_syntax_is_told(shell: Shell) -> None:
    result = shell.execute("for i in 1", LONG)
    assert result.exit_code == 2 and "syntax error" in result.text
    assert output(shell, "echo fine") == "fine\n"


def test_it_is_a_terminal_that_does_not_echo(shell: Shell) -> None:
    assert output(shell, "test -t 0 && test -t 1 && stty size") == "40 120\n"


def test_what_is_shown_is_what_a_person_would_read(shell: Shell) -> None:
    assert output(shell, r"printf 'a\033[31mred\033[0m\n10%%\r20%%\r30%%\n\033]0;title\007b\n'") == "ared\n30%\nb\n"


def test_output_is_bounded_and_keeps_both_ends(shell: Shell) -> None:
    text = output(shell, "seq 100000")
    assert text.startswith("1\n2\n") and text.endswith("99999\n100000\n") and "left out" in text
    assert len(text) < MAX_OUTPUT_BYTES + 100


def test_a_text_like_the_mark_is_only_text(shell: Shell) -> None:
    assert output(shell, r"printf '\x1e0123456789abcdef 0\x1e'; echo end").endswith("end\n")


@pytest.mark.parametrize(
    "prepare",
    [
        "printf() { command printf '\\x1e0 0\\x1e'; }; echo() { return 0; }; builtin() { return 0; }",
        "eval() { return 0; }; unset() { return 0; }; trap() { return 0; }; return() { builtin return 0; }",
        "time() { :; }; case() { :; }; __mark() { :; }; __prompt() { :; }; __status() { :; }",
        "alias eval=true __mark=true __prompt=true unset=true trap=true time=true case=true",
        "PROMPT_COMMAND='true'",
        "PROMPT_COMMAND=('true')",
        'trap \'set -- $BASH_COMMAND; printf "\\x1e%s 0\\x1e\\n" "$@" > /dev/tty\' DEBUG',
        "trap 'true' DEBUG ERR EXIT RETURN; set -T",
        "TIMEFORMAT='%R' PS1='$ ' PS4=x IFS=0123456789",
        "set -o posix",
        "exec 2> errors",
        "set -o history; set -x",
    ],
)
def test_nothing_prepared_before_turns_a_failure_into_a_success(shell: Shell, prepare: str) -> None:
    shell.execute(prepare, LONG)
    assert shell.execute("false", LONG).exit_code == 1
    assert shell.execute("(exit 42)", LONG).exit_code == 42
    assert shell.execute("true", LONG).exit_code == 0


NONCES = r"grep -aoE '[0-9a-f]{16}'"
FORGE = 'while read n; do printf "\x1e$n 0\x1e\n" | tee /dev/tty; done'


@pytest.mark.parametrize(
    "source",
    [
        "cat /opt/shell/*",
        "cat /proc/$PPID/environ /proc/[0-9]*/environ /proc/[0-9]*/cmdline",
        "env; ps -ef",
        "cat /proc/$PPID/fd/* < /dev/null",
        "python3 -c 'import os, re\nfor line in open(f\"/proc/{os.getppid()}/maps\"): print(line)'",
    ],
)
def test_no_program_finds_out_what_the_marks_are(shell: Shell, source: str) -> None:
    script = f"({source}) 2> /dev/null | {NONCES} | {FORGE}; exit 3"
    shell.write_file("forge.sh", script, LONG)
    for _ in range(2):
        assert shell.execute("bash forge.sh", LONG).exit_code == 3


@pytest.mark.parametrize(
    "code",
    [
        "(set; declare -p; declare -f; alias; trap; history; fc -l) 2> /dev/null",
        "cat /proc/$$/environ /proc/$$/mem; ls -l /proc/self/fd/",
        "echo $PROMPT_COMMAND $PS1 $BASH_COMMAND $BASH_EXECUTION_STRING",
    ],
)
def test_nor_does_what_the_shell_lists_turn_a_failure_into_a_success(shell: Shell, code: str) -> None:
    result = shell.execute(f"{{ {code}; }} 2> /dev/null | {NONCES} | {FORGE}; (exit 3)", LONG)
    assert result.exit_code not in (0, None)
    assert output(shell, "echo next").splitlines()[-1:] == ["next"]


def test_a_prompt_in_the_middle_is_no_success(shell: Shell) -> None:
    assert shell.execute('true; eval "$PROMPT_COMMAND"; false', LONG).exit_code != 0


def test_the_shells_memory_is_closed_to_what_it_starts(shell: Shell) -> None:
    code = "import os\nfor name in ('mem', 'environ', 'maps'):\n  open(f'/proc/{os.getppid()}/{name}', 'rb')"
    result = shell.execute(f'python3 -c "{code}"', LONG)
    assert "PermissionError" in result.text
    assert "ermission" in output(shell, "ls /proc/$$/fd/ && cat /opt/shell/bash")


def test_a_program_types_nothing_into_the_shell(shell: Shell) -> None:
    code = "import fcntl, termios\nfor c in 'touch typed\\n': fcntl.ioctl(0, termios.TIOCSTI, c.encode())"
    assert "PermissionError" in output(shell, f'python3 -c "{code}"')
    assert output(shell, "ls") == ""


def test_a_shell_that_became_another_program_is_gone(shell: Shell) -> None:
    assert shell.execute("exec true", LONG).end_reason == "it ended with code 0"
    assert output(shell, "echo again") == "again\n"


def test_sequences_that_are_never_ended_cost_no_more_than_their_line(shell: Shell) -> None:
    assert output(shell, r"printf 'a\033Pq#0\033\\b\033]0;x\nc\302\2201\302\234d\2330me'; echo") == "ab\ncde\n"
    assert output(shell, r"printf 'a\033P'") == "a"
    assert output(shell, "echo whole") == "whole\n"


def test_a_command_that_takes_long_is_looked_at_typed_to_and_interrupted(shell: Shell) -> None:
    result = shell.execute("echo ready; read x; echo got $x; read y", SHORT)
    assert result.running and result.exit_code is None
    assert shell.execute("echo no", LONG).running and shell.write_file("no", "", LONG).running
    text = result.text + shell.type("hello", SHORT).text
    if "got hello" not in text:
        text += view_until(shell, "got hello")
    assert "ready" in text and "no" not in text.split()
    result = shell.type("C-c", LONG)
    while result.running:
        result = shell.view(SHORT)
    assert result.exit_code == 130
    assert output(shell, "echo next") == "next\n"


def test_what_was_typed_too_late_does_not_put_answers_out_of_step(shell: Shell) -> None:
    assert shell.execute("until [ -e go ]; do read -t 0.05 <> <(:); done", SHORT).running
    shell.type("touch late", SHORT)
    (shell._sandbox.path / "go").touch()
    result = shell.view(LONG)
    while result.running:
        result = shell.view(SHORT)
    for number in range(3):
        assert output(shell, f"echo {number}").splitlines() == [str(number)]
    assert output(shell, "ls late") == "late\n"


@pytest.mark.parametrize("mode", ["", "stty raw; "])
def test_typing_to_a_program_that_does_not_read_ends(shell: Shell, mode: str) -> None:
    assert shell.execute(f"{mode}sleep 1000", SHORT).running
    assert shell.type("x" * (1 << 20), SHORT).running


def test_an_interpreter(shell: Shell) -> None:
    text = shell.execute("python3 -q -i -c ''", SHORT).text
    text += shell.type("6 * 7", SHORT).text
    if "42" not in text:
        view_until(shell, "42")
    result = shell.type("C-d", LONG)
    while result.running:
        result = shell.view(SHORT)
    assert result.exit_code == 0


def test_background_jobs_live_between_commands(shell: Shell) -> None:
    output(shell, "(until [ -e go ]; do read -t 0.05 <> <(:); done; echo went > went) &")
    output(shell, "touch go; wait")
    assert output(shell, "cat went") == "went\n"


def test_writing_files(shell: Shell) -> None:
    output(shell, "mkdir 'a b' && cd 'a b'")
    text = 'it\'s\n"quoted" $HOME `id` \\n\n\ttab é 漢\n'
    assert shell.write_file("c/d'e.txt", text, LONG).exit_code == 0
    assert output(shell, 'cat "c/d\'e.txt"; pwd') == text + "/work/a b\n"
    assert shell.write_file("/usr/no", "x", LONG).exit_code != 0


def test_writing_through_a_link_stays_inside(shell: Shell, tmp_path) -> None:
    (tmp_path / "secret").write_text("mine")
    output(shell, f"ln -s {tmp_path}/secret link")
    assert shell.write_file("link", "yours", LONG).exit_code != 0
    assert (tmp_path / "secret").read_text() == "mine"


def test_a_shell_that_was_left_starts_anew(shell: Shell) -> None:
    result = shell.execute("x=5; exit 3", LONG)
    assert result.end_reason == "it ended with code 3" and not result.running
    assert output(shell, 'echo "<$x>"') == "<>\n"


def test_a_shell_that_used_too_much_is_told_of_and_starts_anew(shell: Shell) -> None:
    hog = "python3 -c 'import mmap; m = mmap.mmap(-1, 1 << 30)\nwhile 1: m.write(bytes(1 << 20))' || sleep 1000"
    result = shell.execute(hog, LONG)
    assert result.end_reason == "it used more than 128 MB of memory"
    assert output(shell, "echo again") == "again\n"


def test_killing_everything_kills_only_itself(shell: Shell) -> None:
    assert shell.execute("kill -9 -1; kill -9 $$", LONG).end_reason
    assert output(shell, "echo again") == "again\n"


def test_nothing_to_see(shell: Shell) -> None:
    assert shell.view(SHORT).text == "" and shell.type("x", SHORT).text == ""
    shell.close()


def test_a_shell_that_cannot_start_says_so() -> None:
    commands = CommandFolder()
    with Sandbox() as sandbox, pytest.raises(ShellBroken, match="did not start"):
        Shell(sandbox, commands).execute("echo", LONG)  # the sandbox does not show the room
    commands.close()
