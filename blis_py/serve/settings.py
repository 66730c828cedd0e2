"""Settings of the server itself, whatever is behind it."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Address and limits of a server."""

    host: str = LOOPBACK
    port: int = 8000
    """0 = any free port."""
    api_key: str | None = None
    max_queue: int | None = None
    """Requests that may wait for an instance; more are answered 429. None = unlimited."""
    max_body_bytes: int = 32 * 2**20
    max_choices: int = 128
    """Sequences of one request: prompts times `n`."""
    tls_cert: str | None = None
    tls_key: str | None = None
    grace_s: float = 30.0
    """Time for which a graceful stop waits for open requests."""
    admin: bool = False
    """Routes that change the server are open without a key."""
    key_opens_admin: bool = True
    """The key opens those routes, too."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names of this server in the header Host."""
    trust_chat_template: bool = False
    """Chat templates of requests are rendered."""
    max_connections: int = 65536
    head_timeout_s: float = 30.0
    """Time within which the head of a connection's next request must be complete."""
    default_max_tokens: int | None = None
    """Output limit of a chat request without one; None = what the context leaves."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False
