"""Engine, gateway, judge and trainer of one family, all in this process.

The parts are those of a run; only the processes around them are left out. A reply may be dictated: its tokens are
those of a text, and their log-probabilities the model's own.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
from gateway_rig import Rig, ServerThread, running, wait_until
from peft import LoraConfig, PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.credit import LedgerSource, TrainingSample
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.engines.embedded import batch
from clawrl_trl.engines.embedded.app import create_app
from clawrl_trl.engines.embedded.engine import Engine
from clawrl_trl.engines.embedded.generation import Row, Update
from clawrl_trl.engines.embedded.sampling import Sampler
from clawrl_trl.engines.sync_client import SyncEngineClient
from clawrl_trl.judge.hints import template
from clawrl_trl.judge.loop import JudgeLoop
from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.teacher import HintTeacher
from clawrl_trl.ledger import Ledger, samples
from clawrl_trl.ledger.schema import Turn
from clawrl_trl.policies import FirstGate, PolicyStore, Publisher
from clawrl_trl.trainers import CombineConfig, CombineTrainer

KEY = "family-key"
CANDIDATES = 4

REASONING = "Five and seven."
ARGUMENTS = {"expression": "5+7"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Compute.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "A sum."}},
                "required": ["expression"],
            },
        },
    }
]


@dataclass
class Dictation:
    """Tokens that the next reply is to have, while there are any."""

    ids: list[int] = field(default_factory=list)

    def accept(self, rows: Sequence[Row], sampler: Sampler, logits: Tensor) -> list[Update]:
        """Take the place of the engine's own `accept_drawn`."""
        if not self.ids:
            return _accept_drawn(rows, sampler, logits)
        logprobs = logits.float().log_softmax(-1)
        updates = []
        for row, values in zip(rows, logprobs, strict=True):
            token = self.ids[len(row.output_ids)]
            updates.append(row.accept(token, float(values[token]), []))
        return updates


_accept_drawn = batch.accept_drawn


class FirstHintTeacher(HintTeacher):
    """Takes the first hint; random weights find none of them better."""

    def _choose(self, *arguments: Any) -> int:
        return 0


@dataclass
class FamilyRun:
    """One family's run.

    Args:
        model: Folder of the model.
        rig: The gateway on its engine.
        dictation: What the engine is made to reply.
    """

    model: Path
    rig: Rig
    dictation: Dictation

    def __post_init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(self.model)

    def chat(self, http: httpx.Client, session: str, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """Ask for a reply and return its message; without `text` the model draws it."""
        text = options.pop("text", None)
        self.dictation.ids = self.tokenizer.encode(text, add_special_tokens=False) if text else []
        body = {"messages": messages, "temperature": 1.0, "max_tokens": len(self.dictation.ids) or 12, "seed": 3}
        answer = http.post("/v1/chat/completions", json=body | options, headers={"x-session-id": session})
        self.dictation.ids = []
        assert answer.status_code == 200, answer.text
        message: dict[str, Any] = answer.json()["choices"][0]["message"]
        return message

    def render(self, messages: list[dict[str, Any]], tools: Any, **options: Any) -> str:
        """The text of a conversation by the tokenizer alone."""
        text: str = self.tokenizer.apply_chat_template(
            [_name_as_templates_do(message) for message in messages], tools=tools, tokenize=False, **options
        )
        return text

    def write_reply(self, question: dict[str, Any], reply: dict[str, Any], tools: Any) -> str:
        """A reply as the family's template writes it, up to the token that ends it."""
        prompt = self.render([question], tools, add_generation_prompt=True)
        whole = self.render([question, reply], tools)
        assert whole.startswith(prompt)
        return whole[len(prompt) :].rstrip("\n")

    def judge(self) -> None:
        """Judge and teach every turn that something followed."""
        asyncio.run(self._judge())

    async def _judge(self) -> None:
        async with EngineClient(self.rig.engine_url, KEY) as client:
            loop = JudgeLoop(
                self.rig.ledger, ServeSettings(), FirstHintTeacher(client, top_k=CANDIDATES), RulesJudge()
            )
            stop = asyncio.Event()
            task = asyncio.create_task(loop.run(stop))
            await asyncio.to_thread(wait_until, lambda: all(turn.state != "judging" for turn in self.rig.turns()))
            stop.set()
            await task

    def train(self, **options: Any) -> CombineTrainer:
        """Train on what is ready and publish it, by a trainer that starts anew."""
        with SyncEngineClient(self.rig.engine_url, KEY) as client:
            publisher = Publisher(
                self.rig.ledger, PolicyStore(self.rig.run.policies), engine=client, gate=FirstGate(max_kl=100.0)
            )
            trainer = make_trainer(self.model, self.rig.run.path, self.rig.ledger, publisher, **options)
            trainer.train()
        wait_until(lambda: self.rig.gateway.policies.serving.number == trainer.policy_version)
        return trainer

    def recompute(self, turn: Turn) -> Tensor:
        """Log-probabilities of a turn's reply by one plain pass over its stored tokens."""
        network = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32).eval()
        if turn.policy_version:
            network = PeftModel.from_pretrained(network, self.rig.run.policies / f"policy-v{turn.policy_version}")
        return compute_logprobs(network, turn.prompt_ids, turn.completion_ids)

    def recompute_teacher(self, turn: Turn, hint: str, source: str | None) -> Tensor:
        """The same by the base model that has read a hint."""
        network = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32).eval()
        messages = template.append_hint(turn.messages, hint, template.choose_template(source))
        prompt = self.tokenizer.encode(
            self.render(messages, turn.tools, add_generation_prompt=True), add_special_tokens=False
        )
        return compute_logprobs(network, prompt, turn.completion_ids)


def make_trainer(
    model: Path,
    run: Path,
    source: Ledger | list[TrainingSample],
    publisher: Publisher | None,
    processing_class: Any = None,
    **options: Any,
) -> Any:
    """A trainer by both methods that ends when nothing is ready."""
    args = CombineConfig(
        output_dir=str(run), per_device_train_batch_size=4, learning_rate=1e-3, opd_top_k=CANDIDATES, max_kl=100.0,
        use_cpu=True, disable_tqdm=True, report_to=[], gradient_checkpointing=False, **options,
    )  # fmt: skip
    return CombineTrainer(
        model=str(model), args=args, source=_read(source) if isinstance(source, Ledger) else source,
        publisher=publisher, processing_class=processing_class,
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )  # fmt: skip


def _read(ledger: Ledger) -> LedgerSource:
    source = LedgerSource(ledger, poll_s=0.01, timeout_s=0.0)

    def is_through() -> bool:
        with ledger.reader() as tx:
            counts = samples.counts(tx)
        return not counts["ready"] + counts["leased"]

    source.stop = is_through
    return source


@torch.no_grad()
def compute_logprobs(network: Any, prompt: Any, completion: Any, **arguments: Any) -> Tensor:
    """Log-probabilities of a completion's tokens at temperature 1, by one pass."""
    ids = torch.tensor([[*map(int, prompt), *map(int, completion)]])
    logprobs: Tensor = network(ids, **arguments).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0]


def _name_as_templates_do(message: dict[str, Any]) -> dict[str, Any]:
    """A message with the names of reasoning that templates read, and with calls whose arguments are objects."""
    renamed = {name: value for name, value in message.items() if value is not None}
    if reasoning := message.get("reasoning") or message.get("reasoning_content"):
        renamed |= {"reasoning_content": reasoning, "thinking": reasoning}
    calls = [
        {**call, "function": {**call["function"], "arguments": _read_object(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    renamed.pop("tool_calls", None)
    return {"content": "", **renamed, **({"tool_calls": calls} if calls else {})}


def _read_object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


@contextmanager
def start_family(model: Path, folder: Path) -> Iterator[FamilyRun]:
    """An engine with a model behind a gateway, until the block ends."""
    dictation = Dictation()
    batch.accept_drawn = dictation.accept
    settings = ServeSettings(run=str(folder), model_name_or_path=str(model), max_model_len=4096, max_running=4)
    server = ServerThread(create_app(Engine.load(settings, str(model)), KEY)).start()
    url = f"http://127.0.0.1:{server.port}"
    try:
        with running(
            folder, engine_url=url, engine_client=EngineClient(url, KEY), model_name_or_path=str(model)
        ) as rig:
            yield FamilyRun(model, rig, dictation)
    finally:
        server.stop()
        batch.accept_drawn = _accept_drawn
