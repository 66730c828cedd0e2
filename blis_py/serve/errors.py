"""Errors as clients of the OpenAI API expect them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES: Mapping[int, str] = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    499: "ClientClosedRequestError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}


class ApiError(Exception):
    """A response other than success.

    Args:
        status: HTTP status.
        message: one sentence, without internals.
        param: name of the offending parameter.
        retry_after_s: value of Retry-After; None = no such header.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.retry_after_s = status, message, param, retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return ApiError, (self.status, self.message, self.param, self.retry_after_s)

    @property
    def body(self) -> dict[str, Any]:
        return error_body(self.status, self.message, self.param)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """The JSON body of an error."""
    kind = _TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


INTERNAL = "internal error; the server's log has the details"
