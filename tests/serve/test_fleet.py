"""A simulated fleet under the OpenAI API."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from serving import events, with_fleet

from blis_py import run
from blis_py.errors import InputError
from blis_py.metrics.record import Outcome
from blis_py.serve.backend import Piece, Sampling, Submission
from blis_py.serve.fleet.build import ServedFleet
from blis_py.serve.fleet.journal import RunJournal
from blis_py.serve.fleet.live import Sight
from blis_py.serve.settings import ServeSettings

PROMPT = "Write one line about the queue of an inference server, please. " * 8
CHAT = [{"role": "user", "content": PROMPT}]


async def post(client: httpx.AsyncClient, path: str, **body: object) -> httpx.Response:
    return await client.post(path, json=body)


def test_a_completion_has_as_many_tokens_as_requested() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        answer = (await post(client, "/v1/completions", prompt=PROMPT, max_tokens=9)).json()
        report = (await post(client, "/tokenize", prompt=PROMPT)).json()
        text = (await post(client, "/detokenize", tokens=report["tokens"])).json()
        choice = answer["choices"][0]
        again = (await post(client, "/tokenize", prompt=choice["text"])).json()
        assert answer["usage"]["completion_tokens"] == again["count"] == 9
        assert answer["usage"]["prompt_tokens"] == report["count"]
        assert choice["finish_reason"] == "length"
        assert text["prompt"] == PROMPT

    with_fleet(use)


def test_a_stream_brings_every_token_once_and_in_order() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        body = {"messages": CHAT, "max_tokens": 30, "seed": 3}
        whole = (await post(client, "/v1/chat/completions", **body)).json()
        options = {"include_usage": True}
        got = await post(client, "/v1/chat/completions", **body, stream=True, stream_options=options)
        chunks = events(got.text)
        first, *tokens, used = chunks
        texts = [chunk["choices"][0]["delta"]["content"] for chunk in tokens]
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(texts) == whole["choices"][0]["message"]["content"]
        assert len(texts) == 30
        assert all(texts)
        assert [chunk["choices"][0]["finish_reason"] for chunk in tokens] == [None] * 29 + ["length"]
        assert used["choices"] == []
        assert used["usage"]["completion_tokens"] == 30
        assert used["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

    with_fleet(use)


def test_a_run_is_saved_and_replayed_to_the_same_times(tmp_path: Path) -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        async def one(number: int) -> None:
            prompt = PROMPT + f" {number % 5} " * 40
            await post(client, "/v1/completions", prompt=prompt, max_tokens=20 + number)
            await post(client, "/v1/completions", prompt=prompt + "go on", max_tokens=5)

        await asyncio.gather(*map(one, range(20)))

    fleet = with_fleet(use, cluster={"num_instances": 3, "routing_policy": "weighted"}, speedup=20.0)
    result = fleet.result()
    assert result is not None
    result.save(tmp_path / "served", plots=False)
    again = run(tmp_path / "served" / "config.yaml", trace=str(tmp_path / "served" / "trace.csv"))
    columns = ["instance", "ttft_ms", "e2e_ms", "cached_tokens"]
    columns = [name for name in columns if name in result.requests.columns]
    assert len(result.requests) == 40
    assert result.requests[columns].equals(again.requests[columns])
    assert result.record.cached_tokens.sum() > 0


def test_several_models_are_served_by_the_instances_of_each(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "gpu: h100\nmodel: llama-3.1-8b\npools: [{name: small}, {name: large, count: 2, model: qwen3-14b}]\n"
    )

    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == ["llama-3.1-8b", "qwen3-14b"]
        for model, own in (("llama-3.1-8b", {0}), ("qwen3-14b", {1, 2})):
            body = {"prompt": PROMPT, "max_tokens": 3, "model": model}
            answers = await asyncio.gather(*(post(client, "/v1/completions", **body) for _ in range(4)))
            pods = {answer.headers["x-inference-pod"] for answer in answers}
            assert pods == {f"instance-{index}" for index in own}

    result = with_fleet(use, cluster={"file": file}).result()
    assert result is not None
    assert result.requests.model.tolist() == ["llama-3.1-8b"] * 4 + ["qwen3-14b"] * 4


@pytest.mark.parametrize("handoff", ["vllm", "sglang", "trtllm", "trtllm-generation-first", "blis"])
def test_prefill_and_decode_apart_stream_at_the_times_of_the_record(handoff: str) -> None:
    first_ns: dict[int, int] = {}

    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        live = fleet.backend.live
        later = live._later

        def noted(time_ns: int, sights: list[Sight]) -> None:
            for one, tokens in sights:
                if tokens:
                    first_ns.setdefault(one.request.row, time_ns)
            later(time_ns, sights)

        live._later = noted  # type: ignore[method-assign]
        options = {"continuous_usage_stats": True}
        body = {"prompt": PROMPT, "max_tokens": 20, "stream": True, "stream_options": options}
        answers = await asyncio.gather(*(post(client, "/v1/completions", **body) for _ in range(8)))
        for answer in answers:
            assert events(answer.text)[-1]["usage"]["completion_tokens"] == 20
        gone = asyncio.create_task(post(client, "/v1/completions", prompt=PROMPT, max_tokens=30_000))
        while live.source.rows < 9:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        gone.cancel()

    cluster = {"prefill_instances": 1, "decode_instances": 2, "handoff": handoff}
    result = with_fleet(use, cluster=cluster, speedup=20.0).result()
    assert result is not None
    rows = result.requests[result.requests.outcome == "completed"]
    assert len(rows) == 8
    arrival_ns = result.record.table.arrival_ns
    seen_ms = [(first_ns[row] - arrival_ns[row]) / 1e6 for row in rows.index]
    assert rows.ttft_ms.tolist() == pytest.approx(seen_ms)


@pytest.mark.parametrize("handoff", ["vllm", "sglang", "trtllm", "trtllm-generation-first", "blis"])
def test_a_client_that_leaves_during_a_hand_over_leaves_nothing_behind(handoff: str) -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        live = fleet.backend.live
        assert live._handoff is not None
        gone = asyncio.create_task(post(client, "/v1/completions", prompt=PROMPT * 20, max_tokens=5000))
        while not any(pair.prefill_end_ns >= 0 for pair in live._handoff._pairs.values()):
            await asyncio.sleep(0.001)
        gone.cancel()
        while live._handoff._pairs:
            await asyncio.sleep(0.01)
        while any(scheduler.running or scheduler.queue_depth for scheduler in live.schedulers):
            await asyncio.sleep(0.01)  # with_fleet ends a test whose requests never leave

    cluster = {"prefill_instances": 1, "decode_instances": 1, "handoff": handoff}
    cluster |= {"pd_decider": "always", "pd_transfer_bandwidth": 0.01}  # long enough to be seen at any pace
    result = with_fleet(use, cluster=cluster, speedup=5.0).result()
    assert result is not None
    assert result.requests.outcome.tolist() == ["timed_out"]


@pytest.mark.parametrize("handoff", ["vllm", "trtllm"])
def test_prompts_kept_for_each_other_end_in_one_failure(handoff: str) -> None:
    """Each of two instances keeps one prompt and has no room for the other. Slower than life, so that both
    arrive during a prefill on a busy machine, too."""

    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        bodies = [{"prompt": list(range(n, n + 600)), "max_tokens": 4} for n in (0, 1000)]
        await post(client, "/v1/completions", prompt=[7], max_tokens=2)
        answers = await asyncio.gather(*(post(client, "/v1/completions", **body) for body in bodies))
        assert sorted(answer.status_code for answer in answers) == [200, 408]

    cluster = {"prefill_instances": 1, "prefill_decode_instances": 2, "pd_decider": "always"}
    cluster |= {"handoff": handoff, "num_kv_blocks": 45, "max_model_len": 700}
    cluster |= {"prefill_routing_policy": "round-robin", "decode_routing_policy": "round-robin"}
    result = with_fleet(use, cluster=cluster, speedup=0.05).result()
    assert result is not None
    assert sorted(result.requests.outcome) == ["completed", "completed", "evicted"]


def test_blocks_of_a_diffusion_model_come_as_wholes_and_are_replayed_to_the_same_times(
    tmp_path: Path,
) -> None:
    blocks = tmp_path / "blocks.yaml"
    blocks.write_text("kind: diffusion\nblock_size: 32\nsteps: {mean: 9, cv: 0.3}\n")
    cluster: dict[str, object] = {"model": "llada2.0-mini", "gpu": "h200", "latency_model": "roofline"}
    cluster |= {"block_size": 32, "max_num_seqs": 16, "dllm_workload": str(blocks)}

    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        options = {"continuous_usage_stats": True}
        body = {"prompt": PROMPT, "max_tokens": 100, "stream": True, "stream_options": options}
        answers = await asyncio.gather(*(post(client, "/v1/completions", **body) for _ in range(12)))
        prompt = len(fleet.backend.encode(PROMPT)) % 32
        whole = [32 - prompt, 64 - prompt, 96 - prompt, 100]
        for answer in answers:
            counts = {one["usage"]["completion_tokens"] for one in events(answer.text)}
            assert counts <= set(whole)
            assert 100 in counts

    fleet = with_fleet(use, cluster=cluster)
    result = fleet.result()
    assert result is not None
    result.save(tmp_path / "served", plots=False)
    assert fleet.rounds is not None
    fleet.rounds.write(tmp_path / "served")
    replayed = {"trace": str(tmp_path / "served" / "trace.csv")}
    replayed["dllm_workload"] = str(tmp_path / "served" / "dllm.yaml")
    again = run(tmp_path / "served" / "config.yaml", **replayed)
    assert result.requests[["ttft_ms", "e2e_ms"]].equals(again.requests[["ttft_ms", "e2e_ms"]])


def test_a_client_that_goes_frees_what_it_held() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        backend, pieces = fleet.backend, list[Piece]()
        ids = backend.encode(PROMPT)
        backend.add(
            Submission(id="gone", prompt_ids=ids, sampling=Sampling(max_tokens=30_000)), pieces.append
        )
        while not pieces:
            await asyncio.sleep(0.001)
        assert backend.load()[0].running == 1
        backend.abort("gone")
        report = len(pieces)
        while backend.load()[0].running:
            await asyncio.sleep(0.001)
        assert backend.load()[0].kv_usage == 0
        assert len(pieces) == report

    record = with_fleet(use, speedup=2.0).backend.record
    assert record is not None
    assert record.outcome.tolist() == [Outcome.TIMED_OUT]


def test_an_instance_leaves_with_its_requests_and_another_comes() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        waits = asyncio.create_task(post(client, "/v1/completions", prompt=PROMPT, max_tokens=20_000))
        while not fleet.backend.load()[0].running:
            await asyncio.sleep(0.001)
        assert (await client.post("/sleep", params={"instance": 0, "kill": True})).json()["failed"] == 1
        failed = await waits
        assert failed.status_code == 503
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.post("/wake_up")).json() == {"instance": 1}
        served = await post(client, "/v1/completions", prompt=PROMPT, max_tokens=3)
        assert served.status_code == 200
        assert served.headers["x-inference-pod"] == "instance-1"

    with_fleet(use, speedup=5.0)


def test_a_request_that_waited_at_the_gateway_names_the_instance_that_served_it() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        body = {"prompt": PROMPT, "max_tokens": 40}
        answers = await asyncio.gather(*(post(client, "/v1/completions", **body) for _ in range(4)))
        assert [answer.headers["x-inference-pod"] for answer in answers] == ["instance-0"] * 4

    gateway = {"flow_control": True, "saturation_detector": "concurrency", "max_concurrency_per_instance": 1}
    with_fleet(use, cluster=gateway)


def test_a_full_record_is_announced_and_takes_no_more_requests(caplog: pytest.LogCaptureFixture) -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        statuses = []
        for _ in range(12):
            statuses.append((await post(client, "/v1/completions", prompt="a", max_tokens=1)).status_code)
        assert statuses == [200] * 10 + [503] * 2
        assert (await client.get("/health/ready")).status_code == 503

    with_fleet(use, max_requests=10)
    assert "room is left for 1 more requests; see --max-requests" in caplog.messages


def test_several_choices_share_the_prompt_and_have_indices_of_their_own() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        body = {"prompt": [PROMPT, "other"], "n": 2, "seed": 1, "max_tokens": 4}
        whole = (await post(client, "/v1/completions", **body)).json()
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
        assert whole["usage"]["completion_tokens"] == 16
        got = await post(client, "/v1/completions", **body, stream=True)
        texts = ["", "", "", ""]
        for event in events(got.text):
            texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert texts == [choice["text"] for choice in whole["choices"]]

    with_fleet(use)


def test_an_answer_has_the_requested_form() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
        "required": ["name", "age"],
        "$defs": {"age": {"type": "integer", "minimum": 7}},
    }

    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        answer = (await post(client, "/v1/chat/completions", messages=CHAT, response_format=form)).json()
        assert json.loads(answer["choices"][0]["message"]["content"]) == {"name": "xxxxx", "age": 7}
        chosen = (await post(client, "/v1/completions", prompt="a", guided_choice=["yes", "no"])).json()
        assert chosen["choices"][0]["text"] == "yes"

    with_fleet(use)


def test_a_stop_string_ends_an_echo() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        got = await post(client, "/v1/completions", prompt="one two three four", stop=["thr"], max_tokens=50)
        choice = got.json()["choices"][0]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("one two ", "stop", "thr")

    with_fleet(use, text="echo")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": "a", "model": "other"}, 404, "model"),
        ({"prompt": "a", "max_tokens": 10**6}, 400, "max_tokens"),
        ({"prompt": "", "max_tokens": 1}, 400, "prompt"),
        ({"prompt": "a", "n": 1000}, 400, "n"),
        ({"prompt": "a", "top_p": 0}, 400, "top_p"),
        ({"prompt": "a", "stop": [""]}, 400, "stop"),
        ({"prompt": "a", "max_tokens": 2, "min_tokens": 3}, 400, "min_tokens"),
        ({"prompt": "a", "guided_regex": "a", "guided_choice": ["b"]}, 400, "response_format"),
    ],
)
def test_a_bad_request_is_refused_in_openai_form(body: dict[str, object], status: int, param: str) -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        got = await post(client, "/v1/completions", **body)
        error = got.json()["error"]
        assert (got.status_code, error["code"], error["param"]) == (status, status, param)
        assert error["message"]
        assert (await client.get("/load")).json() == {"server_load": 0}

    with_fleet(use)


def test_failures_are_injected_where_they_are_wanted() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        headers = {"X-Return-Error": "rate_limit"}
        got = await client.post("/v1/completions", json={"prompt": "a"}, headers=headers)
        assert (got.status_code, got.headers["retry-after"]) == (429, "1")
        await post(client, "/admin/config", failures={"broken": 1.0})
        got = await post(client, "/v1/completions", prompt="a", max_tokens=50, stream=True)
        assert "error" in events(got.text)[-1]
        wrong = await post(client, "/admin/config", failures={"broken": 2})
        assert wrong.status_code == 400

    with_fleet(use)


def test_a_key_a_body_and_a_queue_have_their_limits() -> None:
    settings = ServeSettings(api_key="secret", max_body_bytes=2000, max_queue=0)

    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        assert (await post(client, "/v1/completions", prompt="a")).status_code == 401
        assert (await client.get("/health")).status_code == 200
        client.headers["Authorization"] = "Bearer secret"
        assert (await post(client, "/v1/completions", prompt="a" * 3000)).status_code == 413

        async def parts():  # type: ignore[no-untyped-def]
            for _ in range(10):
                yield b"x" * 300

        assert (await client.post("/v1/completions", content=parts())).status_code == 413
        full = await post(client, "/v1/completions", prompt="a")
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")

    with_fleet(use, settings)


def test_metrics_have_the_names_and_labels_of_vllm() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        await post(client, "/v1/completions", prompt=PROMPT, max_tokens=8)
        text = (await client.get("/metrics")).text
        labels = 'engine="0",model_name="qwen3-14b"'
        assert f"vllm:generation_tokens_total{{{labels}}} 8.0" in text
        assert f"vllm:time_to_first_token_seconds_count{{{labels}}} 1.0" in text
        assert f"vllm:inter_token_latency_seconds_count{{{labels}}} 7.0" in text
        assert (
            'vllm:time_to_first_token_seconds_bucket{engine="0",le="2560.0",model_name="qwen3-14b"} 1.0'
            in text
        )
        assert 'vllm:num_requests_running{engine="1",model_name="qwen3-14b"} 0.0' in text
        assert "blis:clock_lag_seconds" in text

    with_fleet(use, cluster={"num_instances": 2})


def test_adapters_are_refused_by_their_name() -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        got = await post(client, "/v1/load_lora_adapter", lora_name="a")
        assert got.status_code == 501
        assert "LoRA" in got.json()["error"]["message"]

    with_fleet(use)


def test_a_field_without_effect_is_named_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        for _ in range(2):
            await post(client, "/v1/completions", prompt="a", max_tokens=1, best_effort=True)

    with_fleet(use)
    assert [record.message for record in caplog.records] == [
        "requests have a field that has no effect here: best_effort"
    ]


def test_a_run_that_is_not_saved_has_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "served.journal.jsonl"

    async def use(client: httpx.AsyncClient, fleet: ServedFleet) -> None:
        fleet.backend.journal = RunJournal(path, force=False)
        headers = {"X-Request-Id": "one", "X-SLO-Class": "batch"}
        await client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 8}, headers=headers)
        fleet.backend.failures.settings = fleet.backend.failures.settings.changed({"broken": 1.0})
        await post(client, "/v1/completions", prompt=PROMPT, max_tokens=8)
        done, broken = map(json.loads, path.read_text().splitlines())
        assert (done["request_id"], done["slo_class"], done["end"]) == ("cmpl-one", "batch", "completed")
        assert (done["output_tokens"], done["instance"]) == (8, 0)
        assert done["arrival_s"] <= done["scheduled_s"] <= done["first_token_s"] <= done["end_s"]
        assert broken["end"] == "aborted"
        with pytest.raises(InputError, match="a run that was not saved is there"):
            RunJournal(path, force=False)
        fleet.backend.journal.remove()
        assert not path.exists()

    with_fleet(use)
