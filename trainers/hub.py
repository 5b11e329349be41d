"""Pushing from a trainer: the policy by the list of what may be published, never the output folder.

With a ledger, what is pushed is the version that training stands at, which serves or waits to; without one, what is in
memory. A push during training runs in the background and ends no training when it fails.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from clawrl_trl.errors import UserError
from clawrl_trl.hub import Publication, Repository, stage_policy, stage_weights
from clawrl_trl.trainers.checkpoint import describe_training
from clawrl_trl.trainers.compat import finish_push, save_collected_weights, save_weights
from clawrl_trl.trainers.parallel.backend import divides_weights
from clawrl_trl.trainers.parallel.weights import gather_weights
from clawrl_trl.trainers.policy_line import PolicyLine
from clawrl_trl.trainers.terms.tempered import TemperedGRPOTrainer

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

Upload = Callable[[], "CommitInfo"]

logger = logging.getLogger(__name__)


class HubGRPOTrainer(TemperedGRPOTrainer):
    """Trainer whose saves, pushes and model cards give nothing of a run away; see [`AsyncGRPOTrainer`]."""

    line: PolicyLine | None
    _repository: Repository | None = None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the adapter in PEFT form (or the model) with its tokenizer; in `output_dir` with the model card.

        With `push_to_hub` it is pushed too, as in [`~transformers.Trainer`].
        """
        if divides_weights(self):
            main = bool(self.accelerator.is_main_process)
            weights = gather_weights(self.accelerator.unwrap_model(self.model), keep=main)
            if main:
                save_collected_weights(self, Path(output_dir or self.args.output_dir), weights)
        else:
            super().save_model(output_dir, _internal_call=True)
        if _internal_call:
            return
        if output_dir is None or Path(output_dir).absolute() == Path(self.args.output_dir).absolute():
            self.create_model_card(model_name=Path(self.args.output_dir).name)
        if self.args.push_to_hub and self.line is not None and self.line.version == 0:
            logger.warning("Nothing has been trained yet, so nothing is pushed to the Hub.")
        elif self.args.push_to_hub:
            self.push_to_hub(commit_message="Model save")

    def init_hf_repo(self, token: str | None = None) -> None:
        """Create the repository `hub_model_id`, by default named like `output_dir`, on the main process.

        Raises:
            UserError: If there is no token, the Hub refuses it, or the repository is public and must not be.
        """
        if not self.is_world_process_zero():
            return
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            logger.warning(
                "hub_strategy %r publishes no optimizer states here: like 'every_save' it pushes the policy alone.",
                str(self.args.hub_strategy.value),
            )
        name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        repository = Repository(name, token=token or self.args.hub_token)
        repository.make(private=self.args.hub_private_repo is not False)
        self._repository, self.hub_model_id, self.push_in_progress = repository, repository.id, None

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        *,
        tags: str | Iterable[str] | None = None,
        **kwargs: object,
    ) -> "CommitInfo | Future[CommitInfo] | None":
        """Upload the policy, tokenizer, model card and training receipt to `hub_model_id`, and nothing else.

        Args:
            commit_message (`str`, *optional*, defaults to `"End of training"`):
                Summary of the commit.
            blocking (`bool`, *optional*, defaults to `True`):
                Return when the upload is done; else at once, with a future.
            token (`str`, *optional*):
                Access token in place of `args.hub_token`.
            revision (`str`, *optional*):
                Branch. Defaults to `args.hub_revision`, else `main`.
            tags (`str` or list of `str`, *optional*):
                Further tags of the model card.
            kwargs:
                Other arguments of [`~transformers.Trainer.push_to_hub`]; the card has no use for them.

        Returns:
            The commit, or a future of it; `None` on other processes than the main one.

        Raises:
            UserError: If nothing has been trained yet, there is no token, or the Hub refuses.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        with ExitStack() as stack:
            saved = self._save_for_push(stack)
            if not self.is_world_process_zero():
                return None
            if self._repository is None or token is not None:
                self.init_hf_repo(token)
            finish_push(self)
            upload = self._make_upload(stack, saved, _as_tuple(tags), commit_message or "End of training", revision)
            return upload() if blocking else self._in_background(upload)

    def _send_telemetry(self) -> None:
        """Send none; the variable that says so is read too late where another library was imported first."""

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push when a checkpoint was saved: the policy, of which the checkpoint is at most the source."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if (busy and not self.args.hub_always_push) or (self.line is not None and self.line.version == 0):
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        message = f"Training in progress, step {self.state.global_step}"
        with ExitStack() as stack:
            source = None if self.line is not None else _Saved(Path(checkpoint_folder), lasting=False)
            self._in_background(self._make_upload(stack, source, (), message, None))

    def _save_for_push(self, stack: ExitStack) -> "_Saved | None":
        """Save what is in memory, on all processes, unless a policy version holds it already."""
        if self.line is not None:
            return None
        saved = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clawrl-save-")))
        save_weights(self, saved)
        return _Saved(saved, lasting=True)

    def _make_upload(
        self, stack: ExitStack, saved: "_Saved | None", tags: tuple[str, ...], message: str, revision: str | None
    ) -> Upload:
        """Stage a publication now; the function that is returned uploads it and removes it."""
        assert self._repository is not None
        repository, revision = self._repository, revision or self.args.hub_revision
        publication = self._stage(stack, repository.id, saved, tags)
        resources = stack.pop_all()

        def upload() -> "CommitInfo":
            with resources:
                return repository.commit(publication.folder, message, revision=revision)

        return upload

    def _stage(self, stack: ExitStack, repo_id: str, saved: "_Saved | None", tags: tuple[str, ...]) -> Publication:
        tags = (*self._tag_names, *(getattr(self.model, "model_tags", None) or ()), *tags)
        if self.line is None:
            assert saved is not None
            record, data = describe_training(self), {"trained": {"steps": self.state.global_step}}
            return stack.enter_context(
                stage_weights(saved.folder, repo_id, record, data=data, linked=saved.lasting, tags=tags)
            )
        tokenizer = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clawrl-tokenizer-")))
        self.processing_class.save_pretrained(tokenizer)
        publisher, version = self.line.publisher, self.line.version
        return stack.enter_context(
            stage_policy(publisher.ledger, publisher.store, repo_id, version=version, tokenizer=tokenizer, tags=tags)
        )

    def _in_background(self, upload: Upload) -> "Future[CommitInfo]":
        assert self._repository is not None
        job = self._repository.in_background(upload)
        job.add_done_callback(_log_failure)
        # Where transformers looks for a push under way.
        self.push_in_progress = PushInProgress([job])
        return job

    def create_model_card(
        self,
        model_name: str | None = None,
        dataset_name: str | None = None,
        tags: str | Iterable[str] | None = None,
    ) -> None:
        """Write the model card of the weights in `output_dir` to its `README.md`, as a push would.

        Args:
            model_name (`str`, *optional*):
                Name of the model. Defaults to that of `output_dir`.
            dataset_name (`str`, *optional*):
                Has no use: the data are the run's own.
            tags (`str` or list of `str`, *optional*):
                Further tags.
        """
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        name = self.hub_model_id or model_name or folder.absolute().name
        with ExitStack() as stack:
            try:
                source = None if self.line is not None else _Saved(folder, lasting=True)
                card = self._stage(stack, name, source, _as_tuple(tags)).folder / "README.md"
            except UserError as error:  # nothing trained yet, for one: saving goes on without a card
                logger.info("no model card is written: %s", error)
                return
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "README.md").write_text(card.read_text())


@dataclass(frozen=True)
class _Saved:
    """A folder with the weights in memory; `lasting` if it stays as it is until they are uploaded."""

    folder: Path
    lasting: bool


def _as_tuple(tags: str | Iterable[str] | None) -> tuple[str, ...]:
    return () if tags is None else (tags,) if isinstance(tags, str) else tuple(tags)


def _log_failure(job: "Future[CommitInfo]") -> None:
    if not job.cancelled() and (error := job.exception()) is not None:
        logger.warning("A push to the Hub failed, training goes on: %s", error)
