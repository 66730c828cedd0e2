"""`make serve`: four simulated instances under the OpenAI API, and one answer of theirs as a stream."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from typing import IO
from urllib.request import Request, urlopen

FLEET = ("--model", "qwen3-14b", "--gpu", "h100", "--num-instances", "4", "--routing-policy", "weighted")
_START_S = 60


def main() -> None:
    with tempfile.TemporaryFile("w+") as log:
        words = [sys.executable, "-m", "blis_py", "serve", *FLEET, "--port", "0"]
        server = subprocess.Popen(words, stderr=log)
        try:
            url = _ready(server, log)
            print(f'$ curl -N {url}/v1/completions -d \'{{"prompt": "Hello", "stream": true}}\'')
            _stream(url)
            print(f"\nserving on {url} until Ctrl-C; metrics: {url}/metrics", flush=True)
            if sys.stdin.isatty():
                server.wait()
        except KeyboardInterrupt:
            pass
        finally:
            server.terminate()
            server.wait()


def _ready(server: subprocess.Popen[bytes], log: IO[str]) -> str:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and server.poll() is None:
        log.seek(0)
        found = re.search(r"ready on (\S+)", log.read())
        if found:
            return found[1]
        time.sleep(0.1)
    log.seek(0)
    sys.exit(f"the server does not start:\n{log.read()}")


def _stream(url: str) -> None:
    body = json.dumps({"prompt": "Hello", "max_tokens": 40, "stream": True}).encode()
    with urlopen(Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                print(json.loads(line[6:])["choices"][0]["text"], end="", flush=True)
    print()


if __name__ == "__main__":
    main()
