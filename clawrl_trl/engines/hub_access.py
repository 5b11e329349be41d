"""Access to a model by its hub id: whether there is any, asked once before anything is started."""

from pathlib import Path

import httpx

from clawrl_trl.errors import UserError


def require_model(model: str, revision: str | None = None) -> None:
    """Refuse a model that is neither on this machine nor to be had, as long as the Hub gives no answer at all.

    Every loader asks for file after file and tries each six times, so that where there is no network minutes go by
    until one gives up. What the Hub does answer, that there is no such model say, is theirs to tell.

    Args:
        model (`str`): Folder or hub id.
        revision (`str`, *optional*): Of a model by its id.

    Raises:
        UserError: If the model is in no folder and not in the cache, and the Hub can't be reached.
    """
    if Path(model).is_dir():
        return
    # Imported here: a model in a folder needs no hub.
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        if not isinstance(try_to_load_from_cache(model, "config.json", revision=revision), str):
            get_hf_file_metadata(hf_hub_url(model, "config.json", revision=revision))
    except (HfHubHTTPError, HFValidationError):
        return
    except (httpx.HTTPError, OfflineModeIsEnabled) as error:
        raise UserError(
            f"The model {model} is not in the cache, and {constants.ENDPOINT} can't be reached "
            f"({type(error).__name__}): check the network, or give --model_name_or_path the model's folder."
        ) from None
