"""A persona's client: asks the gateway for replies and sends it the persona's thumbs as explicit feedback."""

from typing import TYPE_CHECKING, Any

import openai

from clawrl_trl.config.api_keys import read_client_key
from clawrl_trl.envs.base.actor import POLL_SECONDS, TRANSPORT_ERRORS, GatewayPolicy, ModelReply
from clawrl_trl.errors import UserError

if TYPE_CHECKING:
    from tensordict import TensorDictBase

RATING_ATTEMPTS = 5
"""How often a thumb is sent; the turn that it rates may reach the ledger after its stream has ended."""


class PersonaActor(GatewayPolicy):
    """A [`GatewayPolicy`] for one conversation at a time, which passes on the thumbs that an environment observes.

    Reads `thumbs` besides: the thumb for its last reply (1 up, -1 down, 0 none), sent before the next request.
    """

    _last_turn: str | None = None

    def __call__(self, tensordict: "TensorDictBase") -> "TensorDictBase":
        """Rate the last reply if there is a thumb for it, then answer the last message of `conversation`."""
        self.rate(int(tensordict["thumbs"]))
        return super().__call__(tensordict)

    def reply(self, *arguments: Any, **options: Any) -> ModelReply:
        reply = super().reply(*arguments, **options)
        self._last_turn = reply.turn_id
        return reply

    def rate(self, thumbs: int) -> None:
        """Send a thumb for the last reply; a reply that was captured as no turn can't be rated.

        Raises:
            UserError: If the gateway refuses the key, or takes no feedback on the turn.
        """
        if not thumbs or self._last_turn is None:
            return
        key = read_client_key("feedback")
        options: Any = {"headers": {"Authorization": f"Bearer {key}"}} if key else {}
        for _ in range(RATING_ATTEMPTS):
            self.requests += 1
            try:
                body = {"turn_id": self._last_turn, "thumbs": thumbs}
                self.client.post("/feedback", body=body, cast_to=dict[str, Any], options=options)
            except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
                raise UserError("the gateway refuses thumbs with this key: set CLAWRL_FEEDBACK_KEY.") from error
            except openai.NotFoundError:
                # Not a failure: the reply may still be on its way to the ledger.
                self.stopped.wait(POLL_SECONDS)
            except TRANSPORT_ERRORS as error:
                self.count_failure(error)
            else:
                return
        raise UserError(f"the gateway takes no feedback on the turn {self._last_turn}: see its log.")
