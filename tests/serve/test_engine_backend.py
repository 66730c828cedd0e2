"""The real engine under the OpenAI API."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("torch")

import torch
from serving import HANGS_S, client_of, events

from blis_py.cli import main
from blis_py.serve.backend import Piece, Sampling, Submission
from blis_py.serve.killable import Killable
from blis_py.serve.server import Service
from engine.cli.serving.backend import EngineBackend, set_threads
from engine.cli.serving.checkpoint import checkpoint_words, local_folder
from engine.config import EngineConfig
from engine.diffusion.engine import DiffusionEngine
from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.tiny import checkpoint

PROMPT = "one two three"
Use = Callable[[httpx.AsyncClient, EngineBackend], Awaitable[None]]


def with_engine(use: Use, kind: str = "ar", **settings: Any) -> None:
    """Use an engine of a tiny model."""
    from engine.build import build_engine
    from engine.diffusion.build import build_diffusion_engine
    from engine.diffusion.settings import dllm_settings

    config = EngineConfig(
        model=str(checkpoint(kind)),
        device="cpu",
        num_kv_blocks=256,
        block_size=32,
        max_num_seqs=16,
        **settings,
    )
    words = checkpoint_words(checkpoint(kind))

    def build():  # type: ignore[no-untyped-def]
        return build_engine(config) if kind == "ar" else build_diffusion_engine(config, dllm_settings())

    async def run() -> None:
        backend = EngineBackend(build, ["tiny"], words)
        await backend.start()
        try:
            async with client_of(backend) as client:
                await use(client, backend)
        finally:
            await backend.stop()

    asyncio.run(asyncio.wait_for(run(), HANGS_S))


def test_it_answers_as_the_offline_engine_does() -> None:
    llm = LLM(str(checkpoint("ar")), device="cpu", num_kv_blocks=256, block_size=32)
    (expected,) = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    llm.shutdown()

    async def use(client: httpx.AsyncClient, backend: EngineBackend) -> None:
        body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 40, "ignore_eos": True, "stream": True}
        options = {"include_usage": True, "continuous_usage_stats": True}
        got = await client.post("/v1/completions", json={**body, "stream_options": options})
        *tokens, used = events(got.text)
        assert "".join(one["choices"][0]["text"] for one in tokens) == expected.text
        assert used["usage"]["completion_tokens"] == 40
        assert [one["usage"]["completion_tokens"] for one in tokens] == sorted(
            one["usage"]["completion_tokens"] for one in tokens
        )
        formed = await client.post(
            "/v1/completions", json={"prompt": "a", "structured_outputs": {"choice": ["yes", "no"]}}
        )
        assert formed.json()["choices"][0]["text"] in ("yes", "no")
        broken = await client.post("/v1/completions", json={"prompt": "a", "guided_regex": "((("})
        assert broken.status_code == 400
        metrics = (await client.get("/metrics")).text
        assert 'vllm:iteration_tokens_total_sum{engine="0",model_name="tiny"}' in metrics
        assert backend.engine is not None
        assert backend.engine.recorder.log().steps["step"] == []

    with_engine(use)


def test_a_disconnect_frees_the_blocks_and_a_stop_ends_the_rest() -> None:
    pieces, others = list[Piece](), list[Piece]()
    steps = threading.Semaphore(6)

    async def use(client: httpx.AsyncClient, backend: EngineBackend) -> None:
        assert backend.engine is not None
        step = backend.engine.step

        def slow(start_ns: int) -> None:
            """A request takes minutes, for a test that runs late."""
            steps.acquire(timeout=1.0)
            step(start_ns)

        backend.engine.step = slow  # type: ignore[method-assign]
        ids, params = backend.encode(PROMPT), Sampling(max_tokens=400, ignore_eos=True)
        backend.add(Submission(id="a", prompt_ids=ids, sampling=params), pieces.append)
        while len(pieces) < 2:
            await asyncio.sleep(0.002)
        backend.abort("a")
        while backend.load()[0].running:
            await asyncio.sleep(0.002)
        assert backend.load()[0].kv_usage == 0
        steps.release(6)
        backend.add(Submission(id="b", prompt_ids=ids, sampling=params), others.append)
        while not others:
            await asyncio.sleep(0.002)

    with_engine(use)
    assert all(piece.finish_reason is None for piece in pieces)
    assert (others[-1].finish_reason, others[-1].status) in (("error", 503), ("abort", 500))


def test_block_diffusion_streams_its_blocks_and_keeps_no_rounds() -> None:
    async def use(client: httpx.AsyncClient, backend: EngineBackend) -> None:
        body = {"prompt": "S:cab=", "max_tokens": 64, "ignore_eos": True, "stream": True}
        got = await client.post("/v1/completions", json=body)
        chunks = events(got.text)
        assert 1 < len(chunks) < 64
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        engine = backend.engine
        assert isinstance(engine, DiffusionEngine)
        assert engine.recorder.steps > 1
        assert engine.recorder.log().steps["step"] == []
        assert engine.log.rows == []
        assert not engine.log.commit_ns
        assert 'iteration_tokens_total_count{engine="0",model_name="tiny"} 0.0' not in (
            (await client.get("/metrics")).text
        )

    with_engine(use, "diffusion")


def test_a_hub_name_is_looked_up_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "models--org--tiny" / "refs" / "main").write_text("abc")
    assert local_folder("org/tiny") == str(snapshot)
    with pytest.raises(ValueError, match="not in the local cache"):
        local_folder("org/other")


def test_a_failing_engine_is_not_ready_until_a_token_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cli.serving.backend._PROBE_S", 0.05)

    async def use(client: httpx.AsyncClient, backend: EngineBackend) -> None:
        assert backend.engine is not None
        real, fails = backend.engine.launch, [True]

        def launch(batch):  # type: ignore[no-untyped-def]
            if fails[0]:
                raise RuntimeError("a kernel failed")
            return real(batch)

        backend.engine.launch = launch  # type: ignore[method-assign]
        for _ in range(3):
            assert (await client.get("/health/ready")).status_code == 200
            got = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
            assert got.status_code == 500
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        fails[0] = False
        while (await client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.01)
        got = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "ignore_eos": True})
        assert got.status_code == 200

    with_engine(use, async_scheduling=False)


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_lost_device_ends_the_server(overlapped: bool) -> None:
    async def use(client: httpx.AsyncClient, backend: EngineBackend) -> None:
        assert backend.engine is not None

        def launch(*given):  # type: ignore[no-untyped-def]
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        name = "launch_step" if overlapped else "launch"
        setattr(backend.engine, name, launch)
        got = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        assert got.status_code == 500
        while not backend.failure:
            await asyncio.sleep(0.002)
        assert backend.ends_with_failure
        for path in ("/health", "/health/ready"):
            assert (await client.get(path)).status_code == 503
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 503

    with_engine(use, async_scheduling=overlapped)


def test_hostile_forms_cost_the_engine_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgrammar")
    impatient = partial(Killable, cpu_s=2.0, memory_mib=512)
    monkeypatch.setattr("engine.cli.serving.backend.Killable", impatient)

    async def use(client: httpx.AsyncClient, backend: EngineBackend) -> None:
        array = {"type": "array", "minItems": 1_000_000_000, "items": {"type": "integer"}}
        for form in ({"json": array}, {"regex": "a{1000000000}"}, {"regex": "((("}, {"grammar": "x"}):
            for _ in range(2):
                body = {"prompt": "a", "max_tokens": 2, "structured_outputs": form}
                got = await client.post("/v1/completions", json=body)
                assert got.status_code in (200, 400), (form, got.text)
        body = {"prompt": "a", "structured_outputs": {"choice": ["yes", "no"]}}
        for _ in range(2):
            got = await client.post("/v1/completions", json=body)
            assert got.status_code == 200, got.text
            assert got.status_code == 200, got.text
            assert got.json()["choices"][0]["text"] in ("yes", "no")
        assert (await client.get("/health/ready")).status_code == 200

    with_engine(use)


def test_threads_wait_less_for_each_other_while_it_serves() -> None:
    before = sys.getswitchinterval()

    async def use(client: httpx.AsyncClient, backend: EngineBackend) -> None:
        assert sys.getswitchinterval() == pytest.approx(1e-4)

    with_engine(use)
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize(("variable", "threads"), [(None, 1), ("OMP_NUM_THREADS", 3), ("MKL_NUM_THREADS", 3)])
def test_torch_has_one_thread_on_a_cpu_unless_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, threads: int
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "3")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        set_threads("cpu")
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("flags", "opens"), [((), False), (("--enable-admin",), True)])
def test_a_key_does_not_open_the_routes_of_the_operator_on_the_engine(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], opens: bool
) -> None:
    services: list[Service] = []
    monkeypatch.setattr("blis_py.serve.server.run", services.extend)
    monkeypatch.setattr("engine.cli.serving.backend.set_threads", lambda device: None)
    words = ("serve", "--model", str(checkpoint("ar")), "--device", "cpu", "--port", "0", "--api-key", "k")
    assert main(["engine", *words, *flags]) == 0
    settings = services[0].settings
    services[0]._socket.close()
    assert (settings.api_key, settings.key_opens_admin, settings.admin) == ("k", False, opens)
