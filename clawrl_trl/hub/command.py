"""`clawrl push`: publish a policy of a run on the Hugging Face Hub, or list what would be published."""

import argparse
import json
import re

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.hub.base_model import BaseModel
from clawrl_trl.hub.publication import Publication, stage_policy
from clawrl_trl.hub.repository import Repository, check_name
from clawrl_trl.ledger import Ledger
from clawrl_trl.policies import PolicyStore
from clawrl_trl.run import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `clawrl push`."""
    parser.add_argument("repo", nargs="?", metavar="REPO", help="NAME or OWNER/NAME (default: the run folder's name)")
    parser.add_argument("--policy", type=int, metavar="N", help="version (default: the one that serves)")
    visibility = parser.add_mutually_exclusive_group()
    visibility.add_argument("--private", action="store_true", default=True, help="a private repository (the default)")
    visibility.add_argument("--public", dest="private", action="store_false", help="a public repository")
    parser.add_argument("--base-model", metavar="REPO", help="name the base model, where it was a local folder")
    parser.add_argument("--dry-run", action="store_true", help="list the files that would be uploaded")


def push(arguments: argparse.Namespace, ledger: Ledger) -> int:
    """Run the command.

    Raises:
        UserError: If the version can't be published, there is no token, or the Hub refuses.
    """
    folder = RunFolder(arguments.run)
    # The name of a folder may hold characters that no repository's can.
    name = arguments.repo or re.sub(r"[^\w.-]+", "-", folder.path.absolute().name, flags=re.ASCII).strip("-.")
    check_name(name)
    # A list of files needs neither token nor network.
    repository = None if arguments.dry_run else Repository(name)
    with stage_policy(
        ledger,
        PolicyStore(folder.policies),
        name if repository is None else repository.id,
        version=arguments.policy,
        base=None if arguments.base_model is None else BaseModel.of(arguments.base_model),
        served_base=_read_served_base(folder),
    ) as publication:
        if repository is None:
            _report(arguments, publication, repo=name)
            return 0
        repository.make(private=arguments.private)
        version = publication.receipt["policy"]["version"]
        commit = repository.commit(publication.folder, f"Policy version {version}")
        _report(arguments, publication, repo=repository.id, url=str(commit.commit_url))
    return 0


def _read_served_base(folder: RunFolder) -> BaseModel | None:
    """Read the model that the run's settings name; `None` without settings."""
    settings = ServeSettings.find(folder.path)
    return None if settings is None else BaseModel.of(settings.model_name_or_path)


def _report(arguments: argparse.Namespace, publication: Publication, **place: str) -> None:
    files, version = publication.files(), publication.receipt["policy"]["version"]
    facts = {**place, "private": arguments.private, "policy": version, "dry_run": arguments.dry_run}
    if arguments.json:
        print(json.dumps({**facts, "files": [{"name": name, "bytes": size} for name, size in files.items()]}))
        return
    action = "Would push" if arguments.dry_run else "Pushed"
    kind = "private" if arguments.private else "public"
    print(f"{action} policy version {version} to {place['repo']} ({kind}):")
    for name, size in files.items():
        print(f"{size:>14,}  {name}")
    if "url" in place:
        print(place["url"])
