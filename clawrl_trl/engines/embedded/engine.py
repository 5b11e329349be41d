"""The engine without HTTP: one tokenizer, one base model, its policies, and the decoding thread.

It turns the text side of a request (messages, stop strings, limits) into generations and hands back their updates.
Routes only translate between this and JSON.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import psutil
import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.context import choose_embedded_context
from clawrl_trl.engines.embedded.adapters import BASE, AdapterError, LoadedPolicies, LoadedPolicy, load_base
from clawrl_trl.engines.embedded.chat import ChatFormat, find_response_template
from clawrl_trl.engines.embedded.detokenize import Detokenizer, Vocabulary
from clawrl_trl.engines.embedded.errors import RequestError
from clawrl_trl.engines.embedded.generation import Generation, Update
from clawrl_trl.engines.embedded.protocol import SamplingBody
from clawrl_trl.engines.embedded.scheduler import Scheduler
from clawrl_trl.engines.families import read_json
from clawrl_trl.engines.precision import resolve_dtype
from clawrl_trl.errors import UserError

logger = logging.getLogger(__name__)


class UpdateQueue:
    """Queue of the updates of one request, in the event loop.

    Args:
        eager (`bool`): Wake the reader for each update; otherwise only when a choice ends.
    """

    def __init__(self, *, eager: bool) -> None:
        self._eager = eager
        self._updates: list[Update] = []
        self._arrived = asyncio.Event()

    def put(self, update: Update) -> None:
        self._updates.append(update)
        if self._eager or update.finish_reason is not None:
            self._arrived.set()

    async def take(self) -> list[Update]:
        """Everything that arrived since the last call; waits until there is something."""
        await self._arrived.wait()
        self._arrived.clear()
        updates, self._updates = self._updates, []
        return updates


@dataclass(frozen=True)
class Engine:
    """Everything the routes need.

    Args:
        vocabulary (`Vocabulary`): The tokenizer.
        chat (`ChatFormat`): Rendering and parsing of chats.
        policies (`LoadedPolicies`): The base model and what was loaded beside it.
        scheduler (`Scheduler`): The decoding thread.
        max_model_len (`int`): Longest prompt plus completion, in tokens.
    """

    vocabulary: Vocabulary
    chat: ChatFormat
    policies: LoadedPolicies
    scheduler: Scheduler
    max_model_len: int

    @classmethod
    def load(cls, settings: ServeSettings, path: str) -> "Engine":
        """Load model and tokenizer.

        Raises:
            UserError: If the path holds no causal language model with a fast tokenizer.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
            model = load_base(path, getattr(torch, resolve_dtype(settings.dtype)))
        except (OSError, ValueError, KeyError) as error:
            # Only of a config that could be read does transformers say this.
            if "Unrecognized configuration" in str(error) and "vision_config" in read_json(path, "config.json"):
                raise UserError("The embedded engine can't serve a model that sees: use --engine vllm.") from error
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise UserError(f"{path} can't be served ({reason}): name a causal model by its folder or id.") from error
        # Only fast tokenizers have the incremental decoder that streaming needs.
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(f"{path} has no fast tokenizer: add a tokenizer.json to the model folder.")
        if torch.cuda.is_available():
            model.to("cuda")
        chat = ChatFormat(tokenizer, find_response_template(tokenizer, model))
        base = LoadedPolicy(BASE, model, path, _eos_ids(model.generation_config, tokenizer))
        return cls(
            vocabulary=Vocabulary(tokenizer, chat.delimiters),
            chat=chat,
            policies=LoadedPolicies(base),
            scheduler=Scheduler(settings.max_running, settings.max_waiting),
            max_model_len=choose_context(model, settings.max_model_len),
        )

    def find_policy(self, name: str | None) -> LoadedPolicy:
        """Find the policy a request names; the base model when it names none.

        Raises:
            RequestError: 404 if no such policy is loaded.
        """
        policy = self.policies.get(name or BASE)
        if policy is None:
            raise RequestError(f"The model `{name}` does not exist.", status=404, param="model")
        return policy

    def make_generation(
        self,
        policy: LoadedPolicy,
        prompt_ids: list[int],
        body: SamplingBody,
        *,
        max_tokens: int | None,
        top_logprobs: int | None,
        deliver: Callable[[Update], None],
        chat: bool,
    ) -> Generation:
        """Make one prompt of a request ready to submit. `max_tokens` is cut to what the context leaves room for.

        Raises:
            RequestError: If the prompt is empty, too long, or holds ids outside the vocabulary.
        """
        self._check_prompt(prompt_ids, policy, max_tokens)
        room = self.max_model_len - len(prompt_ids)
        sampling = body.to_sampling(
            max_tokens=room if max_tokens is None else min(max_tokens, room),
            eos_ids=policy.eos_ids,
            top_logprobs=top_logprobs,
        )
        self._check_ids(sampling.logit_bias, policy, "logit_bias")
        self._check_ids(sampling.stop_token_ids, policy, "stop_token_ids")
        # A chat's parser needs to see the special tokens that its template names.
        hidden = self.vocabulary.silent_ids if chat else self.vocabulary.special_ids
        new_text = partial(
            Detokenizer,
            self.vocabulary,
            prompt_ids,
            hidden=hidden if body.skip_special_tokens else frozenset(),
            stop=body.stops,
            include_stop=body.include_stop_str_in_output,
        )
        return Generation(
            policy=policy,
            prompt_ids=prompt_ids,
            sampling=sampling,
            new_text=new_text,
            deliver=deliver,
            choices=body.n,
            prompt_logprobs=body.prompt_logprobs,
        )

    def _check_prompt(self, prompt_ids: list[int], policy: LoadedPolicy, max_tokens: int | None) -> None:
        if not prompt_ids:
            raise RequestError("The prompt cannot be empty.", param="prompt")
        # A reply takes at least one token; scoring (`max_tokens` 0) takes none.
        longest = self.max_model_len - (0 if max_tokens == 0 else 1)
        if len(prompt_ids) > longest:
            raise self._context_error(str(len(prompt_ids)))
        self._check_ids(prompt_ids, policy, "prompt")

    def check_characters(self, characters: int, *, times: int = 1) -> None:
        """Refuse a text that can't fit the context, whatever it says, before any work is done on it.

        Args:
            characters (`int`): Length of the text.
            times (`int`, defaults to 1): Contexts that it may fill.

        Raises:
            RequestError: If each token would have to stand for more characters than the longest one does.
        """
        least = -(-characters // self.vocabulary.characters_per_token)
        if least > times * self.max_model_len:
            raise self._context_error(f"at least {least}")

    def _context_error(self, tokens: str) -> RequestError:
        return RequestError(
            f"This model's maximum context length is {self.max_model_len} tokens. However, your request has "
            f"{tokens} input tokens. Please reduce the length of the input messages.",
            param="input_tokens",
        )

    @staticmethod
    def _check_ids(ids: Collection[int], policy: LoadedPolicy, param: str) -> None:
        wrong = next(
            (token for token in (min(ids, default=0), max(ids, default=0)) if not _is_id(token, policy)), None
        )
        if wrong is not None:
            raise RequestError(f"Token id {wrong} is out of vocabulary (0 to {policy.vocab_size - 1}).", param=param)

    async def load_policy(self, name: str, path: str) -> None:
        """Load an adapter or a full model without holding up the event loop or running requests.

        Raises:
            RequestError: If it can't be served.
        """
        await self._change(self.policies.load, name, path)

    async def unload_policy(self, name: str) -> None:
        """Forget a policy; requests that run on it finish.

        Raises:
            RequestError: 404 if there is no such policy.
        """
        await self._change(self.policies.unload, name)

    @staticmethod
    async def _change(change: Callable[..., None], *arguments: str) -> None:
        try:
            await asyncio.to_thread(change, *arguments)
        except AdapterError as error:
            raise RequestError(str(error), status=error.status, param="lora_name") from error

    async def warm_up(self) -> None:
        """Run one short request, so that the first real one doesn't pay for lazy initialisation.

        Raises:
            UserError: If the model can't continue it.
        """
        queue = UpdateQueue(eager=False)
        generation = self.make_generation(
            self.policies.base,
            [0, 1],
            SamplingBody(seed=0, ignore_eos=True),
            max_tokens=2,
            top_logprobs=None,
            deliver=queue.put,
            chat=False,
        )
        self.scheduler.submit([generation])
        for update in await queue.take():
            if update.error is not None:
                raise UserError(f"{self.policies.base.path} can't be served: {update.error.rstrip('.')}.")


def _is_id(token: int, policy: LoadedPolicy) -> bool:
    return 0 <= token < policy.vocab_size


def choose_context(model: PreTrainedModel, requested: int | None) -> int:
    """Choose the longest context to serve, in tokens.

    Raises:
        UserError: If the model has layers that the engine's cache is not made for.
    """
    config = model.config.get_text_config(decoder=True)
    if unserved := set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        raise UserError(f"The embedded engine can't serve layers of type {unserved.pop()}: use --engine vllm.")
    # Layers that read another one's keys and values have none of their own to keep or to move.
    if getattr(config, "num_kv_shared_layers", None):
        raise UserError("The embedded engine can't serve layers that share their keys and values: use --engine vllm.")
    free = torch.cuda.mem_get_info()[0] if model.device.type == "cuda" else psutil.virtual_memory().available
    context = choose_embedded_context(config, requested, itemsize=model.dtype.itemsize, free=free)
    if requested is None:
        logger.info("serving a context of %d tokens", context)
    return context


def _eos_ids(config: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    configured = getattr(config, "eos_token_id", None)
    listed: Sequence[int] = (
        configured if isinstance(configured, list) else [configured] if configured is not None else []
    )
    # Both are needed: chat models end turns with a token that is not always the tokenizer's own.
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return frozenset([*listed, *own])
