"""GUI environment: an agent with a mouse and a keyboard at a real screen.

The screen is a browser's page or a native window; the environment uses only the primitives of
[`clawrl_trl.envs.gui.screen.Screen`]. A policy with vision gets pictures, one without gets the outline, and both act
through the same tool. A mistake of the policy is answered in words. A browser that dies drops the episode, and the
next episode starts another.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torchrl.data import NonTensor, Unbounded

from clawrl_trl.envs.base.agent import AgentEnv, Effect, Start, Task, WorldBroken
from clawrl_trl.envs.base.message import Action
from clawrl_trl.envs.gui.browser_pool import BrowserLease
from clawrl_trl.envs.gui.computer_use import (
    ACTIONS,
    TOOL,
    Gesture,
    GestureError,
    build_tool_schema,
    perform,
    read_gesture,
)
from clawrl_trl.envs.gui.screen import Element, ScreenError, Size, format_outline, measure_difference, to_tensor
from clawrl_trl.envs.gui.tasks import Scene, resolve_step
from clawrl_trl.messages import Json

KEPT_IMAGES = 3
"""Pictures that stay in the conversation; earlier ones are replaced by a note."""
MAX_LINES = 120
"""Lines of the outline that are shown."""

Backend = Literal["playwright", "selenium"]


class GUITask(Task, Protocol):
    """A task on a screen; [`clawrl_trl.envs.gui.tasks.WebTask`] or [`clawrl_trl.envs.gui.x11_tasks.X11Task`]."""

    @property
    def size(self) -> Size:
        """Width and height of its screen in pixels."""


class GUIEnv(AgentEnv[GUITask]):
    """An agent at work on a screen.

    Observations, besides those of [`AgentEnv`]: `screenshot` (uint8, `(3, height, width)`), `outline` (text: the
    accessibility tree, an element a line, with its number), `progress` (float32, share of the task's checks that hold)
    and `difference` (float32, share of the pixels that changed since the last observation).
    Action: an assistant message with calls of `computer_use`, see [`clawrl_trl.envs.gui.computer_use`].
    Reward: at the end, 1 if the task is solved, else -1, or what the task says; the signal of an action is the change
    of `progress`. The episode ends with `terminate`, or when the page ends it.

    Args:
        tasks (`Sequence[GUITask]`): The tasks; their screens have the same size.
        max_steps (`int`, *optional*, defaults to `30`): Most actions of an episode.
        backend (`str`, *optional*, defaults to `"playwright"`): What drives the browser, or `"selenium"`.
        actions (`Sequence[str]`, *optional*, defaults to all): The actions on offer.
        outline (`bool`, *optional*, defaults to `True`): Whether messages carry the outline.
        images (`bool`, *optional*, defaults to `False`): Whether messages carry pictures, as image parts with the
            last `KEPT_IMAGES` kept, for policies that see.
        first_task (`int`, *optional*, defaults to `0`): Position of the task that the first reset starts.
        headless (`bool`, *optional*, defaults to `True`): Whether the browser shows no window.
        device (`torch.device`, *optional*): Where the tensors live.

    Raises:
        ValueError: If the screens' sizes differ, or an action is unknown.
        UserError: If what the screens need is not installed.

    Examples:
        >>> env = GUIEnv(read_tasks("examples/tasks/gui/train.jsonl", difficulty=1))
        >>> print(env.reset()["message"])
        >>> env.step(env.reset().set("action", format_calls({"action": "left_click", "ref": 2})))  # of gui.oracle
    """

    def __init__(
        self,
        tasks: Sequence[GUITask],
        *,
        max_steps: int = 30,
        backend: Backend = "playwright",
        actions: Sequence[str] = tuple(ACTIONS),
        outline: bool = True,
        images: bool = False,
        first_task: int = 0,
        headless: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        sizes = {tuple(task.size) for task in tasks}
        # The spec of the screenshot is fixed for the life of an environment.
        if len(sizes) > 1:
            raise ValueError(f"the tasks' screens have {len(sizes)} sizes, one is needed: {sorted(sizes)}")
        if not actions or set(actions) - set(ACTIONS):
            raise ValueError(f"actions must be some of {', '.join(ACTIONS)}")
        self.size = next(iter(sizes), (0, 0))
        self.actions = tuple(actions)
        self.outline, self.images = outline, images
        self.browser_lease = BrowserLease(backend, headless=headless)
        self.scene: Scene | None = None
        self._advice: dict[int, str] = {}
        self._reset_observation()
        super().__init__(tasks, max_steps=max_steps, first_task=first_task, device=device)
        self.browser_lease.prepare(tasks)

    @property
    def elements(self) -> list[Element]:
        """The outline of the last observation."""
        return self._elements

    @property
    def png(self) -> bytes:
        """The picture of the last observation, as a PNG; empty if the screen did not open."""
        return self._png

    def begin(self, task: GUITask) -> Start:
        self._reset_observation()
        self.scene = self.browser_lease.open_scene(task)
        self._read_screen(self.scene)
        text = f"{self.scene.instruction}\n{self._format_outline()}".strip()
        content: Any = [{"type": "text", "text": text}, *self._add_picture()] if self.images else text
        return Start([{"role": "user", "content": content}], [build_tool_schema(self.actions)])

    def act(self, action: Action) -> Effect:
        if self.scene is None:
            raise WorldBroken("there is no screen")
        if not action.calls:
            return Effect([f"Call {TOOL} to act, or to terminate.", *self._format_outline().splitlines()], signal=0.0)
        self._compare_with_oracle(action)
        before = self._progress
        results: list[str] = []
        ended = False
        for call in action.calls:
            if ended:  # each call needs a result: the chat API refuses a conversation without
                results.append("Not done: the task had ended.")
                continue
            message, ended = self._carry_out(self.scene, call.name, call.arguments)
            results.append(message)
        self._read_screen(self.scene)
        results[-1] = f"{results[-1]}\n{self._format_outline()}".strip()
        parts = self._add_picture() if self.images else []
        return Effect(results, ended=ended, parts=parts, signal=self._progress - before)

    def evaluate(self) -> float:
        if self.scene is None:
            raise WorldBroken("there is no screen")
        return self.scene.compute_outcome()

    def advise(self) -> dict[int, str]:
        """Return a hint for the first step that left the task's oracle: the instruction and the element, twice.

        Given once, they hardly change what the bundled model does.
        """
        return self._advice

    def finish(self) -> None:
        scene, self.scene = self.scene, None
        if scene is not None:
            scene.close()
        # A dropped episode may have left the page in a state that a reset does not repair.
        if self.drop_reason:
            self.browser_lease.discard_page()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the screen, and the browser with the last environment that uses it."""
        super().close(raise_if_closed=raise_if_closed)
        self.browser_lease.close()

    def observe_more(self) -> dict[str, Any]:
        return {
            "screenshot": self._picture,
            "outline": format_outline(self._elements, MAX_LINES),
            "progress": torch.tensor([self._progress]),
            "difference": torch.tensor([self._difference]),
        }

    def _make_specs(self) -> None:
        super()._make_specs()
        number = Unbounded(shape=(1,), device=self.device)
        width, height = self.size
        self.observation_spec.update(
            {
                "screenshot": Unbounded(shape=(3, height, width), dtype=torch.uint8, device=self.device),
                "outline": NonTensor(shape=(), example_data="", device=self.device),
                "progress": number.clone(),
                "difference": number.clone(),
            }
        )

    def _carry_out(self, scene: Scene, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Carry a call out; returns its result in words, and whether the episode has ended."""
        if name != TOOL:
            return f"Error: there is no tool {name!r}, only {TOOL}.", False
        try:
            gesture = read_gesture(arguments, self.actions)
            if gesture.action == "terminate":
                return "Ended.", True
            perform(scene.screen, gesture)
        except (GestureError, ScreenError) as error:
            return f"Error: {error}.", False
        return self._describe_gesture(gesture), scene.has_ended()

    def _compare_with_oracle(self, action: Action) -> None:
        """Compare an action with the oracle's next step, as long as no action has left the oracle."""
        oracle, step = getattr(self.task, "oracle", ()), self.steps_taken - 1
        # Behind the first step that left it the oracle's steps are for another page.
        if self._advice or step >= len(oracle) or self.scene is None:
            return
        try:
            expected = resolve_step(oracle[step], self._elements)
        except ScreenError:
            return
        target = next((target for target in self._elements if target.ref == expected.get("ref")), None)
        if target is not None and [call.arguments for call in action.calls] != [expected]:
            self._advice[step] = "\n".join([self.scene.instruction, str(target)] * 2)

    def _describe_gesture(self, gesture: Gesture) -> str:
        element = next((element for element in self._elements if element.ref == gesture.ref), None)
        return f"Done: {gesture.action}{f' on {element.label}' if element else ''}."

    def _reset_observation(self) -> None:
        width, height = self.size
        self._picture = torch.zeros((3, height, width), dtype=torch.uint8)
        self._png = b""
        self._elements: list[Element] = []
        self._progress = self._difference = 0.0
        self._advice.clear()

    def _read_screen(self, scene: Scene) -> None:
        self._png = scene.screen.capture()
        picture = to_tensor(self._png)
        # The spec of the screenshot was made from the task's size, before any screen was open.
        if picture.shape != self._picture.shape:
            raise WorldBroken(f"the screen is {tuple(picture.shape)}, not {tuple(self._picture.shape)}")
        self._difference = measure_difference(self._picture, picture)
        self._picture = picture
        self._elements = scene.screen.read_outline()
        self._progress = scene.measure_progress()

    def _format_outline(self) -> str:
        return format_outline(self._elements, MAX_LINES) if self.outline else ""

    def _add_picture(self) -> list[Json]:
        """Return the picture as a content part, after dropping pictures that are too old from the conversation."""
        self._drop_old_pictures(KEPT_IMAGES - 1)
        url = f"data:image/png;base64,{base64.b64encode(self._png).decode()}"
        return [{"type": "image_url", "image_url": {"url": url}}]

    def _drop_old_pictures(self, keep: int) -> None:
        parts = [
            (message["content"], place)
            for message in self.messages
            if isinstance(message.get("content"), list)
            for place, part in enumerate(message["content"])
            if part.get("type") == "image_url"
        ]
        for content, place in parts[: max(0, len(parts) - keep)]:
            content[place] = {"type": "text", "text": "(an earlier screenshot)"}
