"""A server that reads requests and answers streams of made-up tokens: `serving_sink.py TOKENS PAUSE_MS`.

It prints its port. Without a pause all tokens come at once.
"""

from __future__ import annotations

import asyncio
import sys

TOKENS, PAUSE_S = int(sys.argv[1]), float(sys.argv[2]) / 1e3
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"
_TOKEN = b'data: {"choices":[{"index":0,"text":" a","finish_reason":null}]}\n\n'
_LAST = (
    b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":32,"completion_tokens":%d}}\n\ndata: [DONE]\n\n' % TOKENS
)
_MODELS = b'{"object":"list","data":[{"id":"sink","object":"model"}]}'


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            await reader.readexactly(length)
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_MODELS), _MODELS))
                continue
            writer.write(_HEAD % b"text/event-stream")
            if PAUSE_S:
                for _ in range(TOKENS):
                    writer.write(_chunk(_TOKEN))
                    await asyncio.sleep(PAUSE_S)
            else:
                writer.write(_chunk(_TOKEN * TOKENS))
            writer.write(_chunk(_LAST) + b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
