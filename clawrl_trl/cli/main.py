"""The `clawrl` command: serve a run, look into it, take something back.

Every command but `serve`, `doctor`, `judge`, `tasks` and `import` only opens the ledger, so it works beside a live
run and after a crash. `--json` prints the same facts for programs.
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

from sqlalchemy.orm import Session as Transaction

from clawrl_trl import __version__, pictures
from clawrl_trl.cli.printer import Printer
from clawrl_trl.cli.session_view import print_reasons, print_turns
from clawrl_trl.config.flags import read_flags
from clawrl_trl.config.presets import list_presets, load_preset
from clawrl_trl.config.serving import DEFAULT_RUN, ServeSettings
from clawrl_trl.errors import UserError, run_main
from clawrl_trl.hub.command import add_arguments as add_push_arguments
from clawrl_trl.ledger import Ledger, history, policies, turns
from clawrl_trl.policies import pin_version
from clawrl_trl.run import RunFolder
from clawrl_trl.visible_text import encode_json


def main() -> None:
    """Entry point of the console script."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # They parse their own flags: no other command is to wait for the import of transformers' parser.
    own_parsers = {"serve": _serve, "tasks": _tasks, "doctor": _doctor, "env-server": _env_server, "judge": _judge}
    if len(sys.argv) > 1 and sys.argv[1] in own_parsers:
        sys.exit(run_main(lambda: own_parsers[sys.argv[1]](sys.argv[2:])))
    sys.exit(run_main(lambda: _command(sys.argv[1:])))


def _command(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    action: Callable[[argparse.Namespace], int] = arguments.action
    return action(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("clawrl", description="Reinforcement learning for live agents.")
    parser.add_argument("--version", action="version", version=f"clawrl {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("serve", help="serve a run: gateway, engine and judge, without training", add_help=False)
    commands.add_parser("doctor", help="check an engine, a model and this machine before training", add_help=False)
    commands.add_parser("env-server", help="lend environments to rollouts on other machines", add_help=False)
    commands.add_parser("judge", help="measure a judge on labelled cases (judge eval)", add_help=False)
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
    add("compact", _compact, "store what turns of an older release repeat once a session")
    add("import", _import, "read hand-written conversations into the ledger").add_argument("file", type=Path)
    presets = commands.add_parser("presets", help="list the presets of a training script")
    presets.add_argument("--json", action="store_true", help="print JSON")
    presets.set_defaults(action=_presets)
    versions = add("policies", _policies, "list the policy versions of a run")
    versions.add_argument("--pin", type=int, metavar="N", help="never prune the weights of version N")
    versions.add_argument("--unpin", type=int, metavar="N", help="let version N be pruned again")
    add_push_arguments(add("push", _push, "publish a policy on the Hugging Face Hub, and nothing else of the run"))
    rollback = add("rollback", _rollback, "serve an earlier policy version again")
    rollback.add_argument("--to", type=int, default=None, help="version (default: the one served before)")
    return parser


def _serve(argv: Sequence[str]) -> int:
    from transformers import HfArgumentParser

    from clawrl_trl.serving.serve import serve

    parser = HfArgumentParser(ServeSettings, prog="clawrl serve")
    (settings,) = read_flags(parser, argv)
    return serve(settings)


def _env_server(argv: Sequence[str]) -> int:
    from clawrl_trl.envs.pool.command import main as serve_environments

    return serve_environments(argv)


def _doctor(argv: Sequence[str]) -> int:
    from clawrl_trl.cli.card_command import FLAG, run_card_command

    if any(word.split("=")[0] == FLAG for word in argv):
        return run_card_command(argv)

    from clawrl_trl.doctor.command import run_doctor

    return run_doctor(argv)


def _judge(argv: Sequence[str]) -> int:
    from clawrl_trl.cli.judge_command import run_judge_command

    return run_judge_command(argv)


def _tasks(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("clawrl tasks", description="Task sets of the environments.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    summary = "run every task's oracle, which must succeed, and do nothing, which must fail"
    check = commands.add_parser("check", help=summary, description=summary)
    check.add_argument("path", type=Path, help="a task set, a task, or a folder with such")
    check.add_argument("--json", action="store_true", help="print JSON, a line for each task")
    arguments = parser.parse_args(argv)

    from clawrl_trl.envs.check_tasks import check_tasks

    unsound = count = 0
    for checked in check_tasks(arguments.path):
        count += 1
        unsound += not checked.ok
        if arguments.json:
            print(json.dumps({**vars(checked), "ok": checked.ok}), flush=True)
        elif not checked.ok:
            outcomes = f"oracle {checked.solved:+g}, nothing done {checked.untouched:+g}"
            print(f"{checked.place}: {checked.task}: {outcomes}. {checked.reason}".rstrip(), flush=True)
    if not arguments.json:
        print(f"{count} tasks, {count - unsound} of them sound, {unsound} not.")
    return 1 if unsound else 0


def open_ledger(run: str) -> Ledger:
    """Open the ledger of a run that exists.

    Raises:
        UserError: If the folder holds no run.
    """
    folder = RunFolder(Path(run))
    settings = ServeSettings.find(run)
    url = settings and settings.ledger_url  # with a ledger on PostgreSQL the folder has no ledger.db
    if url is None and not folder.ledger.exists():
        raise UserError(f"{run} holds no run: name its folder with --run, or start one with 'clawrl serve'.")
    return Ledger.open(url or folder.ledger)


def _sessions(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    with ledger.reader() as tx:
        rows = [dict(row) for row in turns.sessions(tx)]
    if arguments.json:
        print(encode_json(rows))
        return 0
    short = turns.short_ids(row["session_id"] for row in rows)
    cells = [
        {
            **row,
            "session": short[row["session_id"]],
            "started": _format_time(row["started_at"]),
            "last": _format_time(row["last_at"]),
        }
        for row in rows
    ]
    full = {"session": "session_id", "started": "started_at", "last": "last_at"}
    Printer().print_table(("session", "turns", "main", "side", "started", "last"), cells, full)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    with ledger.reader() as tx:
        session, name = _find_session(tx, arguments)
        rows = turns.inspect(tx, session)
    images = pictures.list_session_pictures(arguments.run, name, rows)
    for number, row in enumerate(rows, 1):
        row["pictures"] = [picture.describe() for picture in images if picture.turn == number]
    paths = _write_pictures(arguments, rows, images) if arguments.pictures else []
    if arguments.json:
        files = {"files": [str(path) for path in paths]} if arguments.pictures else {}
        print(encode_json({"session_id": name, "turns": rows, **files}))
        return 0
    printer = Printer()
    print_turns(printer, rows, images)
    if arguments.pictures:
        printer.print_line(f"{len(paths)} pictures in {arguments.pictures}")
    return 0


def _find_session(tx: Transaction, arguments: argparse.Namespace) -> tuple[str, str]:
    """Find the session that the command line names; returns its id, and what its client calls it.

    Raises:
        UserError: If there is none of that name or beginning, or several.
    """
    session = turns.resolve_session(tx, arguments.session)
    if session is None:
        raise UserError(f"There is no session {arguments.session!r} in {arguments.run}: see 'clawrl sessions'.")
    return session.id, session.external_id or session.id


def _write_pictures(
    arguments: argparse.Namespace, rows: Sequence[Mapping[str, Any]], images: Sequence[pictures.Picture]
) -> list[Path]:
    """Write a session's pictures and, where Pillow is there, their filmstrip; returns the files."""
    available = [picture for picture in images if picture.content is not None]
    if not available:
        raise UserError(f"There are no pictures of {arguments.session}: train with --keep_screenshots to have some.")
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    paths = []
    for picture in available:
        paths.append(arguments.pictures / picture.name)
        paths[-1].write_bytes(picture.png())
    if find_spec("PIL") is not None:
        from clawrl_trl.envs.gui.filmstrip import draw_session

        paths.append(arguments.pictures / "filmstrip.png")
        draw_session(rows, available, paths[-1])
    return paths


def _explain(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    with ledger.reader() as tx:
        session, name = _find_session(tx, arguments)
        rows = turns.explain(tx, session)
    if arguments.json:
        print(encode_json(rows))
    elif rows:
        print_reasons(Printer(), rows)
    else:
        Printer().print_line(f"Session {name} has no turns yet.")
    return 0


def _forget(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    with ledger.transaction() as tx:
        session, name = _find_session(tx, arguments)
        count = turns.delete_session(tx, session)
    # Few sessions have screenshots.
    rmtree(RunFolder(arguments.run).find_screenshots(name), ignore_errors=True)
    # A deleted row stays readable in the write-ahead log until that is written back and cut.
    cleared = ledger.checkpoint()
    _report(arguments, {"forgotten": name, "turns": count, "gone_from_disk": cleared})
    if not cleared:
        print(
            f"Another process is reading {ledger.where}, so the erased text is still in {ledger.where}-wal: it goes "
            f"with the next 'clawrl forget', or when the run is stopped.",
            file=sys.stderr,
        )
    return 0


def _compact(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    _report(arguments, {"converted_turns": history.compact(ledger)})
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from clawrl_trl.cli.importing import import_file

    _report(arguments, import_file(arguments.file, arguments.run))
    return 0


def _policies(arguments: argparse.Namespace) -> int:
    ledger = open_ledger(arguments.run)
    for version, pinned in ((arguments.pin, True), (arguments.unpin, False)):
        if version is not None:
            pin_version(ledger, version, pinned)
    names = ("version", "parent", "kind", "state", "reason", "pinned", "path", "sha256", "metrics", "created_at")
    with ledger.reader() as tx:
        rows = [{name: getattr(policy, name) for name in names} for policy in policies.all(tx)]
    if arguments.json:
        print(encode_json(rows))
        return 0
    cells = [
        {
            **row,
            "created": _format_time(row["created_at"]),
            "parent": _or_dash(row["parent"]),
            "reason": _or_dash(row["reason"]),
            "pinned": "yes" if row["pinned"] else "-",
        }
        for row in rows
    ]
    Printer().print_table(
        ("version", "parent", "kind", "state", "created", "pinned", "reason"), cells, {"created": "created_at"}
    )
    return 0


def _presets(arguments: argparse.Namespace) -> int:
    presets = [load_preset(name) for name in list_presets()]
    rows = [{"name": each.name, "for": each.summary, "measured": each.measured or "-"} for each in presets]
    if arguments.json:
        print(encode_json(rows))
    else:
        Printer().print_table(("name", "for", "measured"), rows, {})
    return 0


def _push(arguments: argparse.Namespace) -> int:
    from clawrl_trl.hub.command import push

    return push(arguments, open_ledger(arguments.run))


def _rollback(arguments: argparse.Namespace) -> int:
    from clawrl_trl.policies import PolicyStore, rollback

    ledger = open_ledger(arguments.run)
    policy = rollback(ledger, to=arguments.to, store=PolicyStore(RunFolder(arguments.run).policies))
    _report(arguments, {"serving": policy.version})
    return 0


def _report(arguments: argparse.Namespace, facts: Mapping[str, object]) -> None:
    if arguments.json:
        print(encode_json(facts))
    else:
        Printer().print_line(", ".join(f"{name}: {value}" for name, value in facts.items()))


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def _or_dash(value: object) -> object:
    return "-" if value is None else value


if __name__ == "__main__":
    main()
