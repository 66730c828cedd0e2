"""The loop of measuring and simulating, closed: `blis observe` against servers, and `blis run` beside it.

    python benchmarks/serving.py                 # all; writes results/serving.json
    python benchmarks/serving.py sink streams    # some

- sink: the client's own lateness, against a server that answers 16 tokens at once.
- streams: the highest rate of streams of 200 tokens at which the client is still on time.
- fleet: what `observe` measures of `blis serve`, and what `blis run` predicts of the same requests.
- engine: what it measures of `blis engine serve` on the CPU, and its replay with that server's step times.

Servers are processes of their own; everything stays on the loopback interface. A busy host is part of every
figure here: `load` says how busy it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "serve" / "long")]

from servers import ENGINE, FLEET, serving  # noqa: E402

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
        told = observed(url, out, "--rate", rate, "--num-requests", int(rate * seconds), *lengths)
        return {"rate": rate, **told["client"]["send_error"], "ok": told["requests"].get("ok", 0)}
    finally:
        sink.kill()
        sink.wait()


def sink(folder: Path) -> dict[str, Any]:
    return _sink_at(500, 10, 16, 0, folder / "sink")


def streams(folder: Path) -> dict[str, Any]:
    """Streams of 200 tokens, one every 5 ms, at rising rates until the client is late."""
    found = []
    for rate in (5, 10, 20, 40, 80):
        found.append(_sink_at(rate, 6, 200, 5, folder / f"streams-{rate}"))
        if found[-1]["p99_ms"] > 1:
            break
    on_time = [one["rate"] for one in found if one["p99_ms"] <= 1]
    return {"rates": found, "holds_at": max(on_time, default=0)}


def fleet(folder: Path) -> dict[str, Any]:
    """Two instances at a moderate load."""
    model = ("--model", "qwen3-14b", "--gpu", "h100", "--num-instances", "2")
    load = ("--rate", 6, "--num-requests", 240, "--prompt-tokens", 200, "--output-tokens", 80)
    with serving(*FLEET, "--num-instances", "2") as server:
        told = observed(server.url, folder / "fleet", *load)
        lag_ms = server.metric("blis:clock_lag_max_seconds") * 1e3
    predicted = json.loads(blis("run", *model, *load, "--format", "json", "--no-cross-check"))["cluster"]
    compared = _compared(told["measured"], predicted)
    return {"compared": compared, "rtt_ms": told["client"]["rtt_ms"], "longest_lag_ms": lag_ms, **_late(told)}


def _late(told: dict[str, Any]) -> dict[str, Any]:
    return {"send_error_p99_ms": told["client"]["send_error"]["p99_ms"], "requests": told["requests"]}


def _compared(measured: dict[str, Any], predicted: dict[str, Any]) -> dict[str, Any]:
    """Measured and predicted latencies in ms, and their difference."""
    found = {}
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        for figure in ("mean", "p50", "p99"):
            own, other = measured[metric][figure], predicted[metric][figure]
            found[f"{metric[:-3]}.{figure}"] = {
                "measured_ms": round(own, 3),
                "predicted_ms": round(other, 3),
                "difference_percent": round(100 * (own / other - 1), 2),
            }
    return found


def engine(folder: Path) -> dict[str, Any]:
    """The tiny model on the CPU, replayed with step times fitted to the steps of the same server."""
    load = ("--rate", 4, "--num-requests", 80, "--random-input-len", 60, "--random-output-len", 40)
    log = folder / "steps.csv.gz"
    blocks = ("--num-kv-blocks", "2048", "--max-num-seqs", "64")
    with serving(*ENGINE, *blocks, "--step-log", str(log)) as server:
        observed(
            server.url, folder / "warm", *load[:2], "--num-requests", 20, *load[4:], "--prompt-ids", "10:200"
        )
        told = observed(server.url, folder / "engine", *load, "--prompt-ids", "10:200")
        server.stop()
    blis("profile", "fit", log, "--out", folder / "profile")
    replayed = blis(
        *("replay", "--trace", folder / "engine" / "trace.csv", "--profile", folder / "profile"),
        *("--num-kv-blocks", 2048, "--max-num-seqs", 64, "--format", "json", "--no-cross-check"),
    )
    return {"compared": _compared(told["measured"], json.loads(replayed)["cluster"]), **_late(told)}


CHECKS = {"sink": sink, "streams": streams, "fleet": fleet, "engine": engine}


def main() -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or CHECKS:
            before = os.getloadavg()[0]
            found[name] = {"load": round(before, 1), "cores": os.cpu_count(), **CHECKS[name](Path(folder))}
            print(name, json.dumps(found[name], indent=1), flush=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
