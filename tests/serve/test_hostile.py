"""Whatever a client sends costs bounded time and memory, and no request harms the next one."""

from __future__ import annotations

import asyncio
import json
import platform
import resource
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from bounded import functions
from hostile import ANSWERED, CHAT, COMPLETIONS, Hostile, fixed, fuzzed
from serving import with_fleet

from blis_py.errors import InputError
from blis_py.serve.fleet.build import ServedFleet
from blis_py.serve.killable import Killable, LimitExceeded
from blis_py.serve.memory import LARGE_BYTES, return_freed
from blis_py.serve.server import Service
from blis_py.serve.settings import ServeSettings

Use = Callable[[httpx.AsyncClient, ServedFleet], Awaitable[None]]
MOST_CPU_S = 8.0
"""CPU time of one request in the event loop's thread, which has no other work: seconds on any machine."""


async def send(client: httpx.AsyncClient, one: Hostile) -> httpx.Response:
    headers = {"Content-Type": "application/json", **one.headers}
    raw = {name.encode(): value.encode("utf-8") for name, value in headers.items()}
    return await client.request(one.method, one.path, content=one.body, headers=raw)  # type: ignore[arg-type]


def test_hostile_requests_are_refused_or_answered_in_bounded_time() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        wrong = []
        for one in [*fixed(), *list(fuzzed())[::7]]:
            if one.path.startswith("/admin/outage"):
                continue  # of a service
            begin_s = time.thread_time()
            got = await send(client, one)
            if got.status_code not in ANSWERED or time.thread_time() - begin_s > MOST_CPU_S:
                wrong.append((one.name, got.status_code, got.text[:100]))
            assert (await client.get("/health")).status_code == 200
        assert not wrong
        assert (await client.get("/health/ready")).status_code == 200
        assert (await client.post(COMPLETIONS, json={"prompt": "a"})).status_code == 200

    with_fleet(use, max_requests=5000, speedup=1e4)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"logit_bias": {"1": 5}}, "logit_bias"),
        (COMPLETIONS, {"prompt_logprobs": 1}, "prompt_logprobs"),
        (COMPLETIONS, {"echo": True, "logprobs": 0}, "logprobs"),
        (COMPLETIONS, {"bad_words": ["a"]}, "bad_words"),
        (COMPLETIONS, {"allowed_token_ids": [1]}, "allowed_token_ids"),
        (COMPLETIONS, {"use_beam_search": True}, "use_beam_search"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        (CHAT, {"chat_template": "a"}, "chat_template"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(path: str, body: dict[str, object], param: str) -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        prompt = {"prompt": "a"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "a"}]}
        got = await client.post(path, json={**prompt, **body})
        assert (got.status_code, got.json()["error"]["param"]) == (400, param)

    with_fleet(use)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("guided_regex", "a" * 300_000),
        ("guided_grammar", "a" * 300_000),
        ("guided_json", {"enum": ["a" * 300_000]}),
        ("guided_json", json.dumps({"enum": ["a" * 300_000]})),
        ("guided_choice", ["a" * 100_000] * 3),
        ("structured_outputs", {"choice": ["a" * 300_000]}),
        ("structured_outputs", {"json": {"enum": ["a"] * 100_000}}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"const": "a" * 300_000}}}),
    ],
)
def test_forms_that_are_kept_have_a_bounded_length(name: str, form: object) -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        got = await client.post(COMPLETIONS, json={"prompt": "a", name: form})
        assert got.status_code == 400
        assert got.json()["error"]["param"].startswith(name)
        assert "is longer than 262,144 characters" in got.json()["error"]["message"]

    with_fleet(use)


def test_values_without_effect_are_accepted() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        body = {"logit_bias": {}, "prompt_logprobs": None, "length_penalty": 1.0, "use_beam_search": False}
        got = await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1, **body})
        assert got.status_code == 200

    with_fleet(use)


def test_offsets_of_tokens_are_those_of_the_text() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        body = {"prompt": "a", "max_tokens": 9, "logprobs": 1, "n": 2}
        choices = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        streamed = await client.post(COMPLETIONS, json={**body, "stream": True})
        lines = [json.loads(line[6:]) for line in streamed.text.split("\n\n") if line.startswith("data: {")]
        for index, choice in enumerate(choices):
            offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
            pairs = list(zip(offsets, tokens, strict=True))
            assert len(pairs) == 9
            assert all(choice["text"][at : at + len(token)] == token for at, token in pairs)
            own = [line["choices"][0] for line in lines if line["choices"][0]["index"] == index]
            assert [at for one in own if one["logprobs"] for at in one["logprobs"]["text_offset"]] == offsets

    with_fleet(use)


OPERATORS = ("/admin/config", "/sleep", "/wake_up", "/reset_prefix_cache", "/admin/outage")


@pytest.mark.parametrize(
    ("settings", "opens"),
    [
        (ServeSettings(), False),
        (ServeSettings(admin=True), True),
        (ServeSettings(api_key="k"), True),
        (ServeSettings(api_key="k", key_opens_admin=False), False),
        (ServeSettings(api_key="k", key_opens_admin=False, admin=True), True),
    ],
)
def test_routes_that_change_the_server_need_a_key_or_leave(settings: ServeSettings, opens: bool) -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        client.headers["Authorization"] = "Bearer k"
        for path in OPERATORS:
            got = await client.post(path, params={"instance": 99, "after_s": -1, "seconds": -1})
            assert (got.status_code != 403) == opens, path
        assert (await client.post("/tokenize", json={"prompt": "a"})).status_code == 200

    with_fleet(use, settings)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:80"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "blis-0"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "own.example:80"}, 200),
        ({"Host": "own.example.evil.example"}, 403),
        ({"Host": "localhost:80", "Origin": "http://localhost:80"}, 200),
        ({"Host": "localhost:80", "Origin": "http://localhost:81"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://own.example"}, 200),
        ({"Origin": "null"}, 403),
    ],
)
def test_other_pages_are_refused(headers: dict[str, str], status: int) -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        got = await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1}, headers=headers)
        assert got.status_code == status

    with_fleet(use, ServeSettings(allowed_hosts=("own.example",)))


def test_settings_change_all_or_not_at_all() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        before = (await client.get("/admin/config")).json()
        for wrong in (
            {"speedup": 1e-300},
            {"speedup": True},
            {"speedup": "5"},
            {"answer_tokens": True},
            {"failures": {"kinds": [[1]]}},
            {"failures": {"kinds": ["server_error"] * 2000}},
            {"failures": {"broken": 2}},
        ):
            good = {"speedup": 5.0, "answer_tokens": 7, "failures": {"refused": 0.5}}
            got = await client.post("/admin/config", json={**good, **wrong})
            assert got.status_code == 400
            after = (await client.get("/admin/config")).json()
            assert {**after, "clock": 0} == {**before, "clock": 0}
        got = await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})
        assert got.status_code == 200

    with_fleet(use)


def test_instances_are_bounded() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        added = 0
        while (got := await client.post("/wake_up?after_s=100")).status_code == 200:
            added += 1
            assert added < 300
        assert "too many instances" in got.json()["error"]["message"]
        assert added > 200

    with_fleet(use)


def test_counters_do_not_fall_when_an_instance_leaves() -> None:
    def values(text: str) -> dict[str, float]:
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if "_total{" in line]
        return {name: float(value) for name, value in lines}

    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        for number in range(6):
            await client.post(COMPLETIONS, json={"prompt": f"{number} " * 200, "max_tokens": 4})
        before = values((await client.get("/metrics")).text)
        await client.post("/sleep?instance=0")
        await client.post("/wake_up")
        text = (await client.get("/metrics")).text
        after = values(text)
        assert before.keys() <= after.keys()
        assert all(after[name] >= value for name, value in before.items())
        queried = 'vllm:prefix_cache_queries_total{engine="%d",model_name="qwen3-14b"}'
        assert before[queried % 0] > 0
        assert after[queried % 2] == 0
        assert 'vllm:num_requests_running{engine="0"' not in text
        assert 'vllm:num_requests_running{engine="2"' in text

    with_fleet(use, cluster={"num_instances": 2})


def test_the_clock_that_runs_out_leaves_no_ready_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        monkeypatch.setattr(fleet.backend.live, "now_ns", lambda: 1 << 62)
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.post(COMPLETIONS, json={"prompt": "a"})).status_code == 503
        monkeypatch.undo()

    with_fleet(use)


def test_a_template_of_a_request_is_rendered_on_trust_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blis_py.serve.chat._RENDER_S", 0.5)
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}

    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        loops = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
        for template, status in (
            ("{{ messages[0].content }} b c", 200),
            (loops, 400),
            ("{{ 'x' * 10**6 }}", 400),
            ("{% for a in range(99999) %}{{ 'x' * 10**5 }}{% endfor %}", 400),
            ("{{ ''.__class__.__mro__ }}", 400),
            ("{{", 400),
        ):
            got = await client.post(CHAT, json={**chat, "chat_template": template})
            assert got.status_code == status, got.text

    with_fleet(use, ServeSettings(trust_chat_template=True))


def test_a_call_may_wait_for_the_processor() -> None:
    killable = Killable(functions, cpu_s=0.4)
    try:
        killable.run("sleep", 1.0)
    finally:
        killable.close()


def test_a_killable_call_is_bounded_and_the_next_one_works() -> None:
    killable = Killable(functions, cpu_s=0.2, memory_mib=64)
    try:
        assert killable.run("len", "abc") == 3
        with pytest.raises(LimitExceeded, match=r"longer than (0\.2|2) s"):  # 2: it hardly runs beside others
            killable.run("spin", 600.0)
        with pytest.raises(LimitExceeded, match="longer than 2 s"):
            killable.run("sleep", 600.0)
        with pytest.raises(LimitExceeded, match="more than 64 MiB"):
            killable.run("bytes", 1 << 30)
        with pytest.raises(LimitExceeded, match="more than 64 MiB"):
            killable.run("exit", 3)
        with pytest.raises(InputError, match="seconds"):
            killable.run("refuse", "seconds")
        assert killable.run("len", "abcd") == 4
    finally:
        killable.close()
    with pytest.raises(LimitExceeded, match="stopping"):
        killable.run("len", "a")


@pytest.mark.parametrize("host", [""])
def test_an_address_is_named(host: str) -> None:
    with pytest.raises(InputError, match="--host"):
        Service({}, ServeSettings(host=host, port=0))


@pytest.mark.parametrize(
    ("host", "key", "warns"), [("0.0.0.0", None, True), ("0.0.0.0", "k", False), ("127.0.0.1", None, False)]
)
def test_listening_for_other_machines_without_a_key_warns(
    host: str, key: str | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(Service({}, ServeSettings(host=host, port=0, api_key=key)).start())
    assert ("other machines" in caplog.text) == warns


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps what it wants")
def test_memory_behind_a_large_input_returns_to_the_system() -> None:
    parts: list[object] = [bytes(1000) for _ in range(200_000)]
    held_mib = _resident_mib()
    kept = parts[::1000]
    parts.clear()
    return_freed(LARGE_BYTES)
    assert _resident_mib() < held_mib - 100
    assert len(kept) == 200


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
