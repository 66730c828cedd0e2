"""Routes of a simulated fleet alone: its settings, its instances, its failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from blis_py.errors import InputError
from blis_py.serve.body import body_of
from blis_py.serve.errors import ApiError
from blis_py.serve.fleet.live import check_speedup

if TYPE_CHECKING:
    from blis_py.serve.fleet.backend import FleetBackend


class AdminBody(BaseModel):
    """Settings that can be changed while it serves."""

    model_config = ConfigDict(extra="forbid", strict=True)
    speedup: float | None = None
    answer_tokens: int | None = None
    failures: dict[str, Any] | None = None


def admin_routes(fleet: FleetBackend) -> APIRouter:
    """The routes of one fleet."""
    router = APIRouter(tags=["fleet"])

    @router.get("/admin/config")
    async def config() -> dict[str, Any]:
        """The settings that can be changed, and the state of every instance."""
        return _state(fleet)

    @router.post("/admin/config")
    async def configure(request: Request) -> dict[str, Any]:
        """Change settings: all that are given, or none if one of them is wrong."""
        body = await body_of(request, AdminBody)
        with _as_api_error():
            _check(body)
            failures = fleet.failures.settings.changed(body.failures or {})
        fleet.failures.settings = failures
        if body.speedup is not None:
            fleet.live.set_speedup(body.speedup)
        if body.answer_tokens is not None:
            fleet.answers.tokens = body.answer_tokens
        return _state(fleet)

    @router.post("/sleep")
    async def sleep(instance: int = 0, kill: bool = False) -> dict[str, Any]:
        """Take an instance out of the fleet: it finishes its requests, or with `kill` they fail."""
        with _as_api_error():
            return {"instance": instance, "failed": fleet.sleep(instance, kill=kill)}

    @router.post("/wake_up")
    async def wake_up(pool: str | None = None, after_s: float = 0.0) -> dict[str, Any]:
        """Add an instance, ready after a start-up time."""
        with _as_api_error():
            return {"instance": fleet.wake(pool, after_s)}

    @router.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        """Whether no instance is ready."""
        return {"is_sleeping": not fleet.live.simulation.fleet.ready}

    return router


def _check(body: AdminBody) -> None:
    if body.speedup is not None:
        check_speedup(body.speedup, "speedup")
    if body.answer_tokens is not None and not 1 <= body.answer_tokens <= 2**31:
        raise InputError("must be at least 1", key="answer_tokens", value=body.answer_tokens)


def _state(fleet: FleetBackend) -> dict[str, Any]:
    live, failures = fleet.live, fleet.failures.settings
    return {
        "speedup": live.speedup,
        "answer_tokens": fleet.answers.tokens,
        "failures": {
            "refused": failures.refused,
            "broken": failures.broken,
            "kinds": list(failures.kinds),
        },
        "clock": {"now_s": fleet.now_s(), "lag_s": live.lag_s, "max_lag_s": live.max_lag_s},
        "instances": [
            {"instance": member.index, "pool": member.pool.name, "state": str(member.state)}
            for member in live.simulation.fleet.members
        ],
    }


class _as_api_error:
    """Turns an InputError into a response 400."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError):
            raise ApiError(400, str(error), error.key) from error
