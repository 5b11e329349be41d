"""An own generation: ask twice, keep the shorter reply. The other one is captured as well, and expires unscored.

    accelerate launch examples/train.py --persona student \
        --custom_generate_function_path examples/custom/generate.py:shorter_of_two
"""

from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletion


def shorter_of_two(client: OpenAI, model: str, messages: list[Any], **sampling: Any) -> ChatCompletion:
    """Generate one reply of an episode.

    Args:
        client (`OpenAI`): A client of the gateway, with the session's headers set.
        model (`str`): The model to ask for.
        messages (`list[dict]`): The conversation so far.
        sampling: Whatever else goes into the request.

    Returns:
        `ChatCompletion`: The completion whose first choice is the reply.
    """
    completion: ChatCompletion = client.chat.completions.create(model=model, messages=messages, n=2, **sampling)
    completion.choices.sort(key=lambda choice: len(choice.message.content or ""))
    return completion
