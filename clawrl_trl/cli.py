"""The `clawrl` command: serve a run, look into it, take something back.

Every command but `serve`, `doctor`, `tasks` and `import` only opens the ledger, so it works beside a live run and
after a crash. `--json` prints the same facts for programs.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy.orm import Session as Transaction

from clawrl_trl import pictures
from clawrl_trl.errors import UserError, run_main
from clawrl_trl.ledger import Ledger, policies, turns
from clawrl_trl.run import RunFolder
from clawrl_trl.settings import DEFAULT_RUN, ServeSettings


def main() -> None:
    """Entry point of the console script."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    own = {"serve": _serve, "tasks": _tasks, "doctor": _doctor, "env-server": _env_server}
    if len(sys.argv) > 1 and sys.argv[1] in own:
        sys.exit(run_main(lambda: own[sys.argv[1]](sys.argv[2:])))
    sys.exit(run_main(lambda: _command(sys.argv[1:])))


def _command(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    action: Callable[[argparse.Namespace], int] = arguments.action
    return action(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("clawrl", description="Reinforcement learning for live agents.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("serve", help="serve a run: gateway, engine and judge, without training", add_help=False)
    commands.add_parser("doctor", help="check an engine, a model and this machine before training", add_help=False)
    commands.add_parser("env-server", help="lend environments to rollouts on other machines", add_help=False)
    commands.add_parser("tasks", help="check task sets of the environments", add_help=False)

    def add(name: str, action: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=help)
        command.add_argument(
            "--run",
            default=os.environ.get("CLAWRL_RUN", DEFAULT_RUN),
            help="run folder (default: %(default)s)",
        )
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(action=action)
        return command

    add("sessions", _sessions, "list the sessions of a run")
    inspect = add("inspect", _inspect, "show a session turn by turn")
    inspect.add_argument("session")
    inspect.add_argument("--pictures", type=Path, metavar="DIR", help="write its pictures there, and a filmstrip")
    add("explain", _explain, "say why each turn of a session was filed and trained as it was").add_argument("session")
    forget = add("forget", _forget, "erase a session with its turns, feedback and samples")
    forget.add_argument("session")
    add("import", _import, "read hand-written conversations into the ledger").add_argument("file", type=Path)
    add("policies", _policies, "list the policy versions of a run")
    rollback = add("rollback", _rollback, "serve an earlier policy version again")
    rollback.add_argument("--to", type=int, default=None, help="version (default: the one served before)")
    return parser


def _serve(argv: Sequence[str]) -> int:
    from transformers import HfArgumentParser

    from clawrl_trl.serve import serve

    parser = HfArgumentParser(ServeSettings, prog="clawrl serve")
    (settings,) = parser.parse_args_into_dataclasses(list(argv))
    return serve(settings)


def _env_server(argv: Sequence[str]) -> int:
    from clawrl_trl.envs.lend import main as lend

    return lend(argv)


def _doctor(argv: Sequence[str]) -> int:
    from clawrl_trl.doctor.command import doctor

    return doctor(argv)


def _tasks(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("clawrl tasks", description="Task sets of the environments.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    said = "run every task's oracle, which must succeed, and do nothing, which must fail"
    check = commands.add_parser("check", help=said, description=said)
    check.add_argument("path", type=Path, help="a task set, a task, or a folder with such")
    check.add_argument("--json", action="store_true", help="print JSON, a line for each task")
    arguments = parser.parse_args(argv)

    from clawrl_trl.envs.check_tasks import check_tasks

    bad = count = 0
    for checked in check_tasks(arguments.path):
        count += 1
        bad += not checked.ok
        if arguments.json:
            print(json.dumps({**vars(checked), "ok": checked.ok}), flush=True)
        elif not checked.ok:
            outcomes = f"oracle {checked.solved:+g}, nothing done {checked.untouched:+g}"
            print(f"{checked.place}: {checked.task}: {outcomes}. {checked.reason}".rstrip(), flush=True)
    if not arguments.json:
        print(f"{count} tasks, {count - bad} of them sound, {bad} not.")
    return 1 if bad else 0


def open_ledger(run: str) -> Ledger:
    """The ledger of a run that exists.

    Raises:
        UserError: If the folder holds no run.
    """
    folder = RunFolder(Path(run))
    config = folder.path / "config.json"
    url = ServeSettings.load(run).ledger_url if config.exists() else None
    if url is None and not folder.ledger.exists():
        raise UserError(f"{run} holds no run: name its folder with --run, or start one with 'clawrl serve'.")
    return Ledger.open(url or folder.ledger)


def _sessions(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    with ledger.reader() as tx:
        rows = [dict(row) for row in turns.sessions(tx)]
    columns = ("session_id", "turns", "main", "side", "started_at", "last_at")
    _print(arguments, rows, columns)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    with ledger.reader() as tx:
        rows, name = turns.inspect(tx, arguments.session), _client_name(tx, arguments.session)
    if not rows:
        raise UserError(f"There is no session {arguments.session!r} in {arguments.run}: see 'clawrl sessions'.")
    found = pictures.of_session(arguments.run, name, rows)
    for number, row in enumerate(rows, 1):
        row["pictures"] = [one.described() for one in found if one.turn == number]
    written = _write_pictures(arguments, rows, found) if arguments.pictures else []
    if arguments.json:
        files = {"files": [str(path) for path in written]} if arguments.pictures else {}
        print(json.dumps({"session_id": arguments.session, "turns": rows, **files}, ensure_ascii=False))
        return 0
    console = Console()
    for number, row in enumerate(rows, 1):
        score = "not scored" if row["score"] is None else f"score {row['score']:+g}"
        console.rule(f"{row['turn_id']}  {row['kind']}  {row['state']}  policy {row['policy_version']}  {score}")
        if made_of := [f"{name} {row['detail'][name]:+g}" for name in ("outcome", "signal") if name in row["detail"]]:
            console.print(", ".join(made_of), highlight=False)
        for message in row["messages"][-1:]:
            console.print(f"[bold]{message.get('role')}[/bold]")
            console.print(_text(message), markup=False, highlight=False)
        for one in found:
            if one.turn == number:
                console.print(f"picture: {one}", markup=False, highlight=False)
        console.print("[bold]reply[/bold]")
        console.print(_text(row["response"] or {}), markup=False, highlight=False)
        for message in row["next_state"] or []:
            console.print(f"[bold]next: {message.get('role')}[/bold]")
            console.print(_text(message), markup=False, highlight=False)
        if row["hint"]:
            console.print("[bold]hint[/bold]", end=" ")
            console.print(row["hint"], markup=False, highlight=False)
    if arguments.pictures:
        console.print(f"{len(written)} pictures in {arguments.pictures}", markup=False, highlight=False)
    return 0


def _client_name(tx: Transaction, session: str) -> str:
    """What the client calls a session, under which its screenshots are kept."""
    found = turns.find_session(tx, session)
    return session if found is None else found.external_id or found.id


def _write_pictures(
    arguments: argparse.Namespace, rows: Sequence[Mapping[str, Any]], found: Sequence[pictures.Picture]
) -> list[Path]:
    """Write a session's pictures and, where Pillow is there, their filmstrip; returns the files."""
    shown = [one for one in found if one.content is not None]
    if not shown:
        raise UserError(f"There are no pictures of {arguments.session}: train with --keep_screenshots to have some.")
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    written = []
    for one in shown:
        written.append(arguments.pictures / one.name)
        written[-1].write_bytes(one.png())
    if find_spec("PIL") is not None:
        from clawrl_trl.envs.filmstrip import of_session

        written.append(arguments.pictures / "filmstrip.png")
        of_session(rows, shown, written[-1])
    return written


def _explain(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    with ledger.reader() as tx:
        rows = turns.explain(tx, arguments.session)
    if not rows:
        raise UserError(f"There is no session {arguments.session!r} in {arguments.run}: see 'clawrl sessions'.")
    _print(arguments, rows, ("turn_id", "kind", "kind_reason", "state", "trainable", "judge", "score", "sample"))
    return 0


def _forget(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    with ledger.transaction() as tx:
        rows = turns.inspect(tx, arguments.session)
        if not rows:
            raise UserError(f"There is no session {arguments.session!r} in {arguments.run}: see 'clawrl sessions'.")
        name = _client_name(tx, arguments.session)
        turns.delete_session(tx, arguments.session)
    rmtree(RunFolder(arguments.run).screenshots_of(name), ignore_errors=True)
    cleared = ledger.checkpoint()
    _report(arguments, {"forgotten": arguments.session, "turns": len(rows), "gone_from_disk": cleared})
    if not cleared:
        print(
            f"Another process is reading {ledger.where}, so the erased text is still in {ledger.where}-wal: it goes "
            f"with the next 'clawrl forget', or when the run is stopped.",
            file=sys.stderr,
        )
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from clawrl_trl.importing import import_file

    _report(arguments, import_file(arguments.file, arguments.run))
    return 0


def _policies(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    names = ("version", "parent", "kind", "state", "reason", "path", "sha256", "metrics", "created_at")
    with ledger.reader() as tx:
        rows = [{name: getattr(policy, name) for name in names} for policy in policies.all(tx)]
    _print(arguments, rows, ("version", "parent", "kind", "state", "reason", "path", "created_at"))
    return 0


def _rollback(arguments: argparse.Namespace) -> int:
    from clawrl_trl.policies.publish import rollback

    ledger = open_ledger(arguments.run)
    policy = rollback(ledger, to=arguments.to)
    _report(arguments, {"serving": policy.version})
    return 0


def _report(arguments: argparse.Namespace, facts: Mapping[str, Any]) -> None:
    print(json.dumps(facts) if arguments.json else ", ".join(f"{name}: {value}" for name, value in facts.items()))


def _print(arguments: argparse.Namespace, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    if arguments.json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*(_cell(name, row[name]) for name in columns))
    Console().print(table)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_at"):
        return datetime.fromtimestamp(value).strftime("%Y-%m-%d %H:%M:%S")
    return str(value)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_part(part) for part in content)
    calls = [f"→ {c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls") or []]
    return "\n".join([*([content] if content else []), *calls])


def _part(part: Mapping[str, Any]) -> str:
    url = pictures.url_of(part)
    return str(part.get("text", f"[{part.get('type')}]")) if url is None else f"[{pictures.read_url(url)[0]}]"


if __name__ == "__main__":
    main()
