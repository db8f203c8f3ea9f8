"""The token that clients show: `Authorization: Bearer TOKEN`."""

from __future__ import annotations

import hmac


class Bearer:
    """A token that clients must show; "" for none, and then any client is known."""

    def __init__(self, token: str) -> None:
        self._wanted = token.encode()

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def is_shown(self, authorization: bytes) -> bool:
        """Return whether the value of the header shows the token."""
        if not self._wanted:
            return True
        scheme, _, given = authorization.partition(b" ")
        is_bearer = scheme.lower() == b"bearer"  # a scheme has no case (RFC 9110)
        return hmac.compare_digest(given, self._wanted) and is_bearer


def refusal(authorization: bytes, example: str) -> str:
    """Return the error of a client that does not show the token. example: a right header."""
    if authorization[:7].lower() == b"bearer ":
        return "the token is not this server's; its administrator has the one of --token-file"
    return f"a token is needed: {example}"
