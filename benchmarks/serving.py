"""The loop of measuring and simulating, closed: `blis observe` against servers, and `blis run` beside it.

    python benchmarks/serving.py                 # all; writes results/serving.json
    python benchmarks/serving.py sink streams    # some

- sink: the client's own lateness, against a server that answers 16 tokens at once.
- streams: the highest rate of streams of 200 tokens at which the client is still on time.
- tokens: tokens a second of `blis serve` with 2,000 streams: at 5 tokens/s each, and as many as it can.
- fleet: the load that the host carries, with client and server on it; at half of that, what
  `observe` measures of `blis serve`, and what `blis run` predicts of the same requests.
- engine: what it measures of `blis engine serve` on the CPU, and its replay with the step times of that
  server's log. The front end is fitted to every other request, and compared are the rest.

Servers are processes of their own; everything stays on the loopback interface. Where it is allowed, all
of them run under SCHED_FIFO, since others on a busy host would be part of every figure;
`scheduling` says so, and `load` how busy it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "serve" / "long")]

from servers import ENGINE, FLEET, Server, run, serving  # noqa: E402
from stress import keep_streaming  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "serving.json"
_SINK = ROOT / "benchmarks" / "serving_sink.py"


def blis(*words: object) -> str:
    """Standard output of a command that must succeed."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "blis_py", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr[-2000:]}")
    return done.stdout


def observed(url: str, out: Path, *words: object) -> dict[str, Any]:
    """What `blis observe` says of a measurement."""
    import yaml

    blis("observe", "--server-url", url, "--out", out, *words)
    found: dict[str, Any] = yaml.safe_load((out / "run.yaml").read_text())
    return found


def _sink_at(rate: float, seconds: float, tokens: int, pause_ms: float, out: Path) -> dict[str, float]:
    """Lateness of the client at a rate, against a sink with streams of so many tokens."""
    words = [sys.executable, _SINK, tokens, pause_ms]
    sink = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)
    try:
        assert sink.stdout is not None
        url = f"http://127.0.0.1:{sink.stdout.readline().strip()}"
        lengths = ("--random-input-len", 32, "--random-output-len", tokens, "--prompt-ids", "1:100")
        found = observed(url, out, "--rate", rate, "--num-requests", int(rate * seconds), *lengths)
        return {"rate": rate, **found["client"]["send_error"], "ok": found["requests"].get("ok", 0)}
    finally:
        sink.kill()
        sink.wait()


def sink(folder: Path) -> dict[str, Any]:
    return _sink_at(500, 10, 16, 0, folder / "sink")


def streams(folder: Path) -> dict[str, Any]:
    """Streams of 200 tokens, one every 5 ms, at rising rates until the client is late."""
    found = []
    for rate in (20, 40, 80, 120, 160):
        found.append(_sink_at(rate, 6, 200, 5, folder / f"streams-{rate}"))
        if found[-1]["p99_ms"] > 1:
            break
    on_time = [one["rate"] for one in found if one["p99_ms"] <= 1]
    return {"rates": found, "holds_at": max(on_time, default=0)}


def tokens(folder: Path) -> dict[str, Any]:
    """2,000 streams on four simulated instances, each at 5 tokens/s, and as fast as the host can."""
    flags = ("--num-instances", "4", "--max-num-seqs", "600")
    with serving(*FLEET, *flags, "--speedup", "0.12") as server:
        found = {"at_5_per_stream": run(_paced(server))}
    with serving(*FLEET, *flags, "--speedup", "0.5") as server:
        whole = run(keep_streaming(server.url, 2000, 200, 1, 0.0, ramp_s=1))
        found["at_most"] = _stated(server, whole["tokens"] / whole["seconds"], whole)
    return found


async def _paced(server: Server) -> dict[str, Any]:
    """Tokens a second in the six seconds after all streams have begun."""
    streaming = asyncio.create_task(keep_streaming(server.url, 2000, 100, 6, 0.0, ramp_s=5))
    await asyncio.sleep(8)
    before, since_s = await _counted(server)
    await asyncio.sleep(6)
    after, until_s = await _counted(server)
    whole = await streaming
    return await asyncio.to_thread(_stated, server, (after - before) / (until_s - since_s), whole)


def _stated(server: Server, tokens_per_s: float, whole: dict[str, float]) -> dict[str, Any]:
    return {
        "streams": 2000,
        "tokens_per_s": round(tokens_per_s),
        "server_cpu_us_per_token": round(server.cpu_s / whole["tokens"] * 1e6, 1),
        "longest_lag_ms": round(server.metric("blis:clock_lag_max_seconds") * 1e3, 1),
        "whole_and_in_order": whole["whole"],
    }


async def _counted(server: Server) -> tuple[float, float]:
    """Tokens so far, and when they were counted."""
    count = await asyncio.to_thread(server.metric, "vllm:generation_tokens_total")
    return count, asyncio.get_running_loop().time()


_FLEET = ("--model", "qwen3-14b", "--gpu", "h100", "--num-instances", "16")
_CARRIED_LAG_MS = 100.0
"""The lag that the server itself reports as an overload."""


def fleet(folder: Path) -> dict[str, Any]:
    """Sixteen instances, at half of the load that the host carries."""
    carried = 0
    for rate in (100, 200, 300, 400):
        found = _fleet_at(rate, rate * 8, folder / f"fleet-{rate}")
        print(
            rate,
            found["longest_lag_ms"],
            found["send_error_p99_ms"],
            found["output_tokens_per_s"],
            flush=True,
        )
        if found["longest_lag_ms"] > _CARRIED_LAG_MS:
            break
        carried = rate
    return {
        "carried_requests_per_s": carried,
        **_fleet_at(carried / 2, int(carried / 2 * 20), folder / "fleet"),
    }


def _fleet_at(rate: float, number: int, out: Path) -> dict[str, Any]:
    load = ("--rate", rate, "--num-requests", number, "--prompt-tokens", 200, "--output-tokens", 80)
    with serving(*FLEET, "--num-instances", "16") as server:
        found = observed(server.url, out, *load)
        lag_ms = server.metric("blis:clock_lag_max_seconds") * 1e3
    predicted = json.loads(blis("run", *_FLEET, *load, "--format", "json", "--no-cross-check"))["cluster"]
    return {
        "rate": rate,
        "output_tokens_per_s": round(found["measured"]["output_tokens_per_s"]),
        "compared": _compared(found["measured"], predicted),
        "rtt_ms": round(found["client"]["rtt_ms"], 3),
        "longest_lag_ms": round(lag_ms, 3),
        **_late(found),
    }


def _late(found: dict[str, Any]) -> dict[str, Any]:
    return {"send_error_p99_ms": found["client"]["send_error"]["p99_ms"], "requests": found["requests"]}


def _compared(measured: dict[str, Any], predicted: dict[str, Any]) -> dict[str, Any]:
    """Measured and predicted latencies in ms, and their difference."""
    found = {}
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        for figure in ("mean", "p50", "p99"):
            own, other = measured[metric][figure], predicted[metric][figure]
            found[f"{metric[:-3]}.{figure}"] = _difference(own, other)
    return found


def _difference(measured_ms: float, predicted_ms: float) -> dict[str, float]:
    return {
        "measured_ms": round(float(measured_ms), 3),
        "predicted_ms": round(float(predicted_ms), 3),
        "difference_percent": round(float(100 * (measured_ms / predicted_ms - 1)), 2),
    }


def engine(folder: Path) -> dict[str, Any]:
    """The tiny model on the CPU, replayed with step times fitted to the steps of the same server."""
    load = ("--rate", 4, "--random-input-len", 60, "--random-output-len", 40, "--prompt-ids", "10:200")
    log = folder / "steps.csv.gz"
    blocks = ("--num-kv-blocks", "2048", "--max-num-seqs", "64")
    with serving(*ENGINE, *blocks, "--step-log", str(log)) as server:
        observed(server.url, folder / "warm", *load, "--num-requests", 20)
        found = observed(server.url, folder / "engine", *load, "--num-requests", 160, "--seed", 7)
        server.stop()
    blis("profile", "fit", log, "--out", folder / "profile")
    measured = _times_ms(folder / "engine")
    front_ms = float((measured - _replayed(folder, 0.0)).ttft_ms[::2].mean())
    both = {"measured": measured, "predicted": _replayed(folder, front_ms)}
    means = {name: rows[1::2].mean() for name, rows in both.items()}
    compared = {
        f"{name[:-3]}.mean": _difference(means["measured"][name], means["predicted"][name])
        for name in measured
    }
    return {"compared": compared, "frontend_ms": round(front_ms, 3), **_late(found)}


def _times_ms(folder: Path) -> Any:
    """TTFT, E2E and TPOT of each request that a client measured."""
    import pandas as pd

    rows = pd.read_csv(folder / "trace.csv").set_index("request_id")
    first_ms, last_ms = (rows[f"{name}_chunk_time_us"] / 1e3 for name in ("first", "last"))
    sent_ms = rows.send_time_us / 1e3
    tpot_ms = (last_ms - first_ms) / (rows.output_tokens - 1)
    return pd.DataFrame({"ttft_ms": first_ms - sent_ms, "tpot_ms": tpot_ms, "e2e_ms": last_ms - sent_ms})


def _replayed(folder: Path, front_ms: float) -> Any:
    import pandas as pd

    out = folder / f"replayed-{front_ms:.3f}"
    blis(
        *("replay", "--trace", folder / "engine" / "trace.csv", "--profile", folder / "profile"),
        *(
            "--num-kv-blocks",
            2048,
            "--max-num-seqs",
            64,
            "--frontend-ms",
            f"{max(front_ms, 0.0):.3f}",
            "--out",
            out,
        ),
        *("--no-plots", "--format", "json", "--no-cross-check"),
    )
    rows = pd.read_csv(out / "requests.csv")
    rows.index = rows.request_id.str.removeprefix("request_").astype(int)
    return rows[["ttft_ms", "tpot_ms", "e2e_ms"]]


CHECKS = {"sink": sink, "streams": streams, "tokens": tokens, "fleet": fleet, "engine": engine}


def first_in_line() -> str:
    """Put this process and its children before those of others, where that is allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    except (AttributeError, PermissionError):
        return "as usual"
    return "SCHED_FIFO"


def main() -> None:
    scheduling = first_in_line()
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or CHECKS:
            before = os.getloadavg()[0]
            host = {"load": round(before, 1), "cores": os.cpu_count(), "scheduling": scheduling}
            found[name] = {**host, **CHECKS[name](Path(folder))}
            print(name, json.dumps(found[name], indent=1), flush=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
