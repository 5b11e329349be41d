"""Authorisation: bearer keys in three scopes, and what keeps browsers out when there is no key.

`chat` keys talk to the model, the `feedback` key rates replies, the `admin` key sees and changes the run. Each
chat key is an owner of its own: sessions of different owners never join. Without a chat key the gateway serves
this machine only, and since any web page can make a browser call 127.0.0.1, such requests must name a loopback
host (DNS rebinding) and must not come from a page (`Origin`, `Sec-Fetch-Site`) of another origin, be it another port
of this machine, but for those that the user lists.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from clawrl_trl.config.api_keys import read_api_key
from clawrl_trl.config.serving import LOOPBACK_HOSTS
from clawrl_trl.errors import UserError
from clawrl_trl.gateway.errors import ApiError

LOCAL = "local"
"""The owner of everything said without a key."""


def _split(value: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (value or "").split(",") if part.strip())


def fingerprint(key: str) -> str:
    """A short name for a key that doesn't give it away."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def is_loopback(host: str | None) -> bool:
    """Return whether a host name or address is this machine's own."""
    if host is None:
        return False
    if host.lower() in LOOPBACK_HOSTS:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Keys:
    """The keys of a gateway; several of one scope are written with commas between them."""

    chat: tuple[str, ...] = ()
    feedback: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls) -> "Keys":
        return cls(_split(read_api_key("chat")), _split(read_api_key("feedback")), _split(read_api_key("admin")))

    def check_bind(self, host: str) -> None:
        """Refuse to listen beyond this machine without a key.

        Raises:
            UserError: If `host` is not a loopback address and no chat key is set.
        """
        if not self.chat and not is_loopback(host):
            raise UserError(
                f"--host {host} would let anybody on the network in: set a key first, for example "
                "export CLAWRL_API_KEY=$(python -c 'import secrets; print(secrets.token_urlsafe(24))')"
            )

    def chat_owner(self, headers: Mapping[str, str]) -> str:
        """The owner a chat request acts for."""
        if not self.chat:
            return LOCAL
        return fingerprint(_match_key(_read_key(headers), self.chat))

    def feedback_owner(self, headers: Mapping[str, str]) -> str | None:
        """The owner whose turns may be rated; `None` for a feedback key, which may rate anybody's."""
        if not self.feedback:
            return self.chat_owner(headers)
        _match_key(_read_key(headers), self.feedback)
        return None

    def check_admin(self, headers: Mapping[str, str], client: str | None) -> None:
        """Let an administrator pass: by key, or on this machine when no keys exist at all."""
        if self.admin:
            _match_key(_read_key(headers), self.admin)
        elif self.chat or self.feedback or not is_loopback(client):
            raise ApiError(403, "This needs the admin scope: set CLAWRL_ADMIN_KEY and use it as the bearer key.")

    def guard(self, headers: Mapping[str, str], scheme: str, bound: str, origins: Collection[str] = ()) -> None:
        """Without a chat key, refuse what a browser may have been tricked into sending.

        Args:
            headers (`Mapping[str, str]`): The request's headers.
            scheme (`str`): `"http"` or `"https"`, as the request came.
            bound (`str`): The address the gateway is bound to.
            origins (`Collection[str]`, *optional*): Origins of pages that may use the gateway, besides its own.

        Raises:
            ApiError: 403, if the host is not this machine or the page is of another origin.
        """
        # With a key nothing is gained by tricking a browser: a foreign page can't know what to send as bearer.
        if self.chat:
            return
        host = _hostname("//" + headers.get("host", ""))
        if not is_loopback(host) and host != bound.lower():
            raise ApiError(403, f"Host {host!r} is not this machine; set CLAWRL_API_KEY to be reached by that name.")
        origin = headers.get("origin")
        # Browsers send no Origin with some GET requests, but Sec-Fetch-Site with all; other programs send neither.
        if origin is None:
            foreign = headers.get("sec-fetch-site", "none").lower() not in ("none", "same-origin")
        else:
            allowed = {f"{scheme}://{headers.get('host', '')}", *origins}
            foreign = origin.lower() not in {page.lower() for page in allowed}
        if foreign:
            raise ApiError(403, "Web pages of other origins may not use this gateway: allow one by --allowed_origins.")


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _read_key(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    # Anthropic's clients send it so.
    return headers.get("x-api-key") or None


def _match_key(presented: str | None, keys: Iterable[str]) -> str:
    """The key that was presented, compared with every key so that time tells nothing."""
    matched = None
    for key in keys:
        # No break at a match, and bytes, because compare_digest refuses text that is not ASCII.
        if presented is not None and hmac.compare_digest(presented.encode("utf-8", "replace"), key.encode()):
            matched = key
    if matched is None:
        message = (
            "Incorrect API key provided." if presented else "No API key provided: send Authorization: Bearer <key>."
        )
        raise ApiError(
            401,
            message,
            type="invalid_request_error",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return matched
