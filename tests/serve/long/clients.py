"""Clients and gateways that others wrote, unmodified, against both servers.

    python tests/serve/long/clients.py                    # all
    python tests/serve/long/clients.py openai locust      # some

Each is installed from PyPI into an environment of its own below .venv/clients, since their pins collide;
one that cannot be installed is skipped with a word. All traffic stays on the loopback interface.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from servers import ENGINE, FLEET, ROOT, serving

ENVIRONMENTS = Path(os.environ.get("BLIS_CLIENTS", ROOT / ".venv" / "clients"))
SCRIPTS = Path(__file__).parent / "scripts"
_INSTALL_S = 240
_PACKAGES = {
    "openai": "openai==3.54.0",
    "schemathesis": "schemathesis==4.32.5",
    "locust": "locust==2.47.0",
    "sglang-router": "sglang-router==0.3.2",
    "vllm-router": "vllm-router==0.1.17",
    "aiperf": "aiperf",
    "guidellm": "guidellm",
    "vllm": "vllm",
}
_WITH_TORCH = ("guidellm", "vllm")
"""They also see the packages of this environment, or pip would fetch gigabytes of torch for each."""


class Skipped(Exception):
    """A client that cannot be installed here."""


def environment(name: str) -> Path:
    """The folder of a client's programs.

    Raises:
        Skipped: it cannot be installed.
    """
    home = ENVIRONMENTS / name
    if not (home / ".installed").exists() and not os.environ.get("BLIS_CLIENTS"):
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        if name in _WITH_TORCH:
            site = next((home / "lib").glob("python*/site-packages"))
            (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [home / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        try:
            subprocess.run([*pip, _PACKAGES[name]], check=True, timeout=_INSTALL_S, capture_output=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise Skipped(f"{_PACKAGES[name]} cannot be installed: {type(error).__name__}") from None
        (home / ".installed").touch()
    if not (home / "bin" / "python").exists():
        raise Skipped("not installed")
    return home / "bin"


def call(*words: object, timeout: float = 180, offline: bool = True) -> str:
    """Output of a program that must succeed.

    Args:
        offline: tell the libraries of Hugging Face so; some then refuse local folders, too.
    """
    environ = {**os.environ, "NO_COLOR": "1"}
    if offline:
        environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=timeout, env=environ
    )
    if done.returncode:
        raise AssertionError(f"{words}: {done.stdout[-3000:]} {done.stderr[-3000:]}")
    return done.stdout + done.stderr


def openai() -> None:
    """`openai`: streaming, chat, structured output, errors; against both servers."""
    python = environment("openai") / "python"
    with serving(*FLEET, "--speedup", "20") as server:
        print(call(python, SCRIPTS / "openai_client.py", server.url, "qwen3-14b").strip())
    with serving(*ENGINE) as server:
        print(call(python, SCRIPTS / "openai_client.py", server.url, "ar").strip())


def schemathesis() -> None:
    """Requests made from the OpenAPI schema: none is answered with 5xx."""
    st = environment("schemathesis") / "schemathesis"
    with serving(*FLEET, "--speedup", "1000", "--max-requests", "200000") as server:
        out = call(
            st,
            "run",
            f"{server.url}/openapi.json",
            *("--checks", "not_a_server_error", "--max-examples", "25", "--seed", "1", "--no-color"),
            *("--exclude-path-regex", "lora_adapter|outage|sleep|wake_up", "--phases", "examples,fuzzing"),
            timeout=240,
        )
        assert server.process.poll() is None
        assert "Traceback" not in server.log.read_text()
        print("schemathesis", next((line.strip() for line in out.splitlines() if "passed" in line), "ok"))


def locust() -> None:
    """Locust: twenty users for ten seconds, without a failure; its count is that of the server."""
    program = environment("locust") / "locust"
    with serving(*FLEET, "--speedup", "10") as server:
        words = ("--headless", "-u", 20, "-r", 20, "-t", "10s", "--host", server.url, "--json")
        out = call(program, "-f", SCRIPTS / "locustfile.py", *words, "--skip-log")
        stats = json.loads(out[out.index("[") : out.rindex("]") + 1])
        total = sum(one["num_requests"] for one in stats)
        served = server.metric("vllm:request_success_total")
        assert not any(one["num_failures"] for one in stats), stats
        assert abs(served - total) <= 20, (served, total)  # those under way when it stopped
        print("locust", total, "requests without a failure")


CHECKS: dict[str, Callable[[], None]] = {
    "openai": openai,
    "schemathesis": schemathesis,
    "locust": locust,
}

if __name__ == "__main__":
    from gateways import CHECKS as GATEWAYS
    from loads import CHECKS as LOADS

    CHECKS |= {**LOADS, **GATEWAYS}
    failed = []
    for name in sys.argv[1:] or CHECKS:
        begin = time.monotonic()
        try:
            CHECKS[name]()
        except Skipped as why:
            print(f"{name}: skipped, {why}")
        except Exception as error:
            failed.append(name)
            print(f"{name}: FAILED: {type(error).__name__}: {str(error)[-3000:]}")
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
