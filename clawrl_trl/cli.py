"""The `clawrl` command: serve a run, look into it, take something back.

Every command but `serve` and `import` only opens the ledger, so it works beside a live run and after a crash.
`--json` prints the same facts for programs.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from clawrl_trl.errors import UserError, run_main
from clawrl_trl.ledger import Ledger, policies, turns
from clawrl_trl.run import RunFolder
from clawrl_trl.settings import DEFAULT_RUN, ServeSettings


def main() -> None:
    """Entry point of the console script."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if len(sys.argv) > 1 and sys.argv[1] == "serve":
        sys.exit(run_main(lambda: _serve(sys.argv[2:])))
    sys.exit(run_main(lambda: _command(sys.argv[1:])))


def _command(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    action: Callable[[argparse.Namespace], int] = arguments.action
    return action(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("clawrl", description="Reinforcement learning for live agents.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("serve", help="serve a run: gateway, engine and judge, without training", add_help=False)

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
    add("inspect", _inspect, "show a session turn by turn").add_argument("session")
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


def _turns_of(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    ledger = open_ledger(arguments.run)
    with ledger.reader() as tx:
        rows = turns.inspect(tx, arguments.session)
    if not rows:
        raise UserError(f"There is no session {arguments.session!r} in {arguments.run}: see 'clawrl sessions'.")
    return rows


def _inspect(arguments: argparse.Namespace) -> int:
    rows = _turns_of(arguments)
    if arguments.json:
        print(json.dumps({"session_id": arguments.session, "turns": rows}, ensure_ascii=False))
        return 0
    console = Console()
    for row in rows:
        score = "not scored" if row["score"] is None else f"score {row['score']:+g}"
        console.rule(f"{row['turn_id']}  {row['kind']}  {row['state']}  policy {row['policy_version']}  {score}")
        for message in row["messages"][-1:]:
            console.print(f"[bold]{message.get('role')}[/bold]", _text(message), markup=True, highlight=False)
        console.print("[bold]reply[/bold]")
        console.print(_text(row["response"] or {}), markup=False, highlight=False)
        for message in row["next_state"] or []:
            console.print(f"[bold]next: {message.get('role')}[/bold]")
            console.print(_text(message), markup=False, highlight=False)
        if row["hint"]:
            console.print(f"[bold]hint[/bold] {row['hint']}", highlight=False)
    return 0


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
        turns.delete_session(tx, arguments.session)
    _report(arguments, {"forgotten": arguments.session, "turns": len(rows)})
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
        content = "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in content)
    calls = [f"→ {c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls") or []]
    return "\n".join([*([content] if content else []), *calls])


if __name__ == "__main__":
    main()
