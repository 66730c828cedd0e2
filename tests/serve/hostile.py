"""Hostile requests of the OpenAI API: a fixed list, and every field with every odd value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ANSWERED = {200, 400, 403, 404, 405, 408, 413, 415, 429, 501}
"""Statuses that a hostile request may have: never a fault of the server."""
_HUGE = 1_000_000_000
_LOOPS = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3


@dataclass(frozen=True)
class Hostile:
    """One request."""

    name: str
    path: str
    body: bytes
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def _of(name: str, path: str, **body: Any) -> Hostile:
    prompt = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT else {"prompt": "a"}
    return Hostile(name, path, json.dumps({**prompt, "max_tokens": 4, **body}).encode())


def _deep(levels: int, inner: Any = 1) -> Any:
    for _ in range(levels):
        inner = [inner]
    return inner


def _schemas() -> Iterator[tuple[str, Any]]:
    array = {"type": "array", "items": {}}
    yield "a billion items", {**array, "minItems": _HUGE}
    yield "items of items", {**array, "minItems": _HUGE, "items": {**array, "minItems": _HUGE}}
    yield "a long string", {"type": "string", "minLength": _HUGE}
    yield "a repeated constant", {**array, "minItems": _HUGE, "items": {"const": "x" * 1000}}
    yield "two billion characters", {"type": "string", "minLength": _HUGE, "maxLength": 2 * _HUGE}
    yield "a pattern", {"type": "string", "pattern": "(a{1,1000}){1,1000}"}
    yield (
        "a doubling",
        {
            "$defs": {
                f"d{n}": {"type": "array", "minItems": 2, "items": {"$ref": f"#/$defs/d{n + 1}"}}
                for n in range(60)
            },
            "$ref": "#/$defs/d0",
        },
    )
    yield "a circle", {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    yield "itself", {"$ref": "#"}
    yield "nowhere", {"$ref": "#/$defs/none"}
    yield "many names", {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(20_000)}}
    yield "many required", {"type": "object", "required": [f"p{n}" for n in range(20_000)]}
    yield "a large enum", {"enum": [f"value {n}" for n in range(20_000)]}
    yield "deep", {"const": _deep(60)}
    yield "too deep", {"const": _deep(500)}
    for key in (
        "minItems",
        "items",
        "type",
        "minimum",
        "exclusiveMinimum",
        "minLength",
        "properties",
        "required",
    ):
        for value in (-1, "x", 1.5, [], {}, True, None, 1e308):
            yield f"{key} {value!r}", {"type": "array" if "tems" in key else "object", key: value}
    for key in ("anyOf", "oneOf", "allOf", "enum", "type", "$ref"):
        for value in ([], {}, 5, "x", [5], None):
            yield f"{key} {value!r}", {key: value}


def fixed() -> Iterator[Hostile]:
    """Requests that once did harm, and their kin."""
    for name, schema in _schemas():
        yield _of(f"schema: {name}", COMPLETIONS, structured_outputs={"json": schema})
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "array", "minItems": _HUGE}}}
    yield _of("schema of a chat", CHAT, response_format=form)
    for form in (
        {"regex": "a{1000000000}"},
        {"regex": "((a*)*)*b"},
        {"grammar": "root ::= root root"},
        {"choice": []},
        {"choice": [""]},
        {"choice": ["x" * 100_000]},
        {"choice": "abc"},
        {"regex": 5},
        {"json": "{"},
        {"json": []},
    ):
        yield _of(f"form {str(form)[:40]}", COMPLETIONS, structured_outputs=form)
    yield _of("a template of loops", CHAT, chat_template=_LOOPS)
    yield _of("a template as a variable", CHAT, chat_template_kwargs={"chat_template": _LOOPS})
    yield _of("messages as a variable", CHAT, chat_template_kwargs={"messages": 5})
    yield _of("many stops", COMPLETIONS, stop=[f"stop {n}" for n in range(5000)])
    yield _of("long stops", COMPLETIONS, stop=["x" * 100_000])
    yield _of("many stop tokens", COMPLETIONS, stop_token_ids=list(range(50_000)))
    yield _of("many prompts", COMPLETIONS, prompt=["a"] * 50_000)
    yield _of("many empty prompts", COMPLETIONS, prompt=[[]] * 200_000)
    yield _of("a long prompt", COMPLETIONS, prompt="a " * 2_000_000)
    yield _of("many ids", COMPLETIONS, prompt=[1] * 500_000)
    yield _of("many wrong ids", COMPLETIONS, prompt=["x", *[1] * 200_000])
    yield _of("negative ids", COMPLETIONS, prompt=[-1] * 100_000)
    yield _of("mixed ids", COMPLETIONS, prompt=[1, "a", [2], {}] * 20_000)
    yield _of("many choices", COMPLETIONS, n=10_000)
    yield _of("long choices", COMPLETIONS, n=128, max_tokens=400, prompt=["a"] * 100)
    yield _of("log-probabilities", COMPLETIONS, n=128, logprobs=20, max_tokens=400)
    yield _of("all log-probabilities", COMPLETIONS, logprobs=100_000)
    yield _of("many messages", CHAT, messages=[{"role": "user", "content": ""}] * 200_000)
    yield _of(
        "many parts", CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * 100_000}]
    )
    yield _of("many tools", CHAT, tools=[{"type": "function"}] * 50_000)
    for role in ([], {}, 5, None, "x" * 100_000):
        yield _of(f"role {str(role)[:20]}", CHAT, messages=[{"role": role, "content": "a"}])
    for content in (5, {}, [5], [{"type": "image_url"}], [{"type": "text", "text": 5}], [[]], True):
        yield _of(f"content {content}", CHAT, messages=[{"role": "user", "content": content}])
    yield from _odd_parameters()
    yield from _texts()
    yield from _admin()


def _odd_parameters() -> Iterator[Hostile]:
    """Values at their bounds, or that contradict each other."""
    for seed in (2**63 - 1, -(2**63), 2**63, 2**70):
        yield _of(f"seed {seed}", COMPLETIONS, seed=seed, n=3)
    for ids in ([[10**9]], [-5], [[]], [2**31 - 1], [2**31], [[1], "a", [2]]):
        yield _of(f"echo of {ids}", COMPLETIONS, prompt=ids, echo=True)
    for name in ("self", "loop", "context", "range", "raise_exception", "bos_token", "tools", "documents"):
        yield _of(f"variable {name}", CHAT, chat_template_kwargs={name: [[{}]]})
    yield _of("a deep variable", CHAT, chat_template_kwargs={"x": _deep(900)})
    yield _of("more tokens at least than at most", COMPLETIONS, min_tokens=9, max_tokens=3)
    yield _of("many streams", COMPLETIONS, stream=True, n=128, max_tokens=40)
    yield _of("streamed log-probabilities", COMPLETIONS, stream=True, n=8, logprobs=20, max_tokens=40)
    yield _of("an echo of nothing", CHAT, messages=[{"role": "user", "content": None}], echo=True)
    yield _of("an answer to go on with", CHAT, messages=[], continue_final_message=True)
    calls = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{"}}] * 20_000
    yield _of("many calls", CHAT, messages=[{"role": "assistant", "content": None, "tool_calls": calls}])
    for ids in ([10**18], [-1], [2**31] * 100_000, [0.5]):
        yield Hostile(f"ids {ids[0]}", "/detokenize", json.dumps({"tokens": ids}).encode())


def _texts() -> Iterator[Hostile]:
    """Bodies that are not the JSON that they should be."""
    bodies = {
        "nothing": b"",
        "null": b"null",
        "a list": b"[]",
        "a number": b"5",
        "a text": b'"a"',
        "half": b'{"prompt": ',
        "deep lists": b"[" * 100_000,
        "deep objects": b'{"a":' * 50_000,
        "deep and closed": b"[" * 50_000 + b"]" * 50_000,
        "a surrogate": b'{"prompt": "\\ud800"}',
        "a surrogate in bytes": b'{"prompt": "\xed\xa0\x80"}',
        "a surrogate as a stop": b'{"prompt": "a", "stop": "\\udfff"}',
        "no UTF-8": b'{"prompt": "\xff"}',
        "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
        "a zero byte": b'{"prompt": "a"}\0',
        "a zero": b'{"prompt": "\\u0000"}',
        "infinity": b'{"prompt": "a", "temperature": Infinity}',
        "not a number": b'{"prompt": "a", "top_p": NaN}',
        "a huge number": b'{"prompt": "a", "max_tokens": 1e999}',
        "a long number": b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}",
        "an infinite schema": b'{"prompt": "a", "guided_json": {"minimum": 1e999, "type": "number"}}',
        "a key twice": b'{"prompt": "a", "prompt": "b"}',
        "many keys": b"{" + b",".join(b'"k%d":1' % n for n in range(100_000)) + b"}",
        "a key twice among many": b"{" + b",".join(b'"k%d":1' % n for n in range(100_000)) + b',"k99999":1}',
        "many lists": b'{"prompt": "a", "x": [' + b",".join([b"[]"] * 300_000) + b"]}",
        "a byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
        "digits of a fraction": b'{"prompt": "a", "temperature": 0.' + b"9" * 200_000 + b"}",
        "blanks": b" " * 200_000 + b'{"prompt": "a"}',
    }
    for name, body in bodies.items():
        for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
            yield Hostile(f"{name} to {path}", path, body)
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
        "\x7f",
    ):
        yield Hostile(
            f"content type {kind!r}", COMPLETIONS, b'{"prompt": "a"}', headers={"Content-Type": kind}
        )


def _admin() -> Iterator[Hostile]:
    """What an operator's routes refuse, with leave and without."""
    for speedup in ("1e-300", "0", "-1", "1e300", "NaN", "Infinity", "null", '"x"', "[]"):
        yield Hostile(
            f"speedup {speedup}", "/admin/config", b'{"speedup": %s, "answer_tokens": 3}' % speedup.encode()
        )
    for failures in (
        '{"kinds": [[1]]}',
        '{"kinds": [{}]}',
        '{"kinds": 5}',
        '{"refused": "x"}',
        '{"x": 1}',
        "[]",
        '{"broken": 1e999}',
    ):
        yield Hostile(f"failures {failures}", "/admin/config", b'{"failures": %s}' % failures.encode())
    for config in (
        '{"speedup": true}',
        '{"answer_tokens": true}',
        '{"answer_tokens": 1e400}',
        json.dumps({"failures": {"kinds": ["server_error"] * 20_000}}),
        json.dumps({"failures": _deep(900)}),
    ):
        yield Hostile(f"config {config[:30]}", "/admin/config", config.encode())
    for query in (
        "wake_up?pool=%00&after_s=1e-320",
        "sleep?instance=9&kill=maybe",
        "wake_up?after_s=inf",
        "wake_up?after_s=nan",
        "wake_up?after_s=-1",
        "wake_up?after_s=1e308",
        "wake_up?pool=x",
        "sleep?instance=-1",
        "sleep?instance=99999999999999999999",
        "sleep?instance=x",
        "admin/outage?seconds=nan",
        "admin/outage?seconds=-1",
        "admin/outage?seconds=inf",
    ):
        yield Hostile(query, f"/{query}", b"")
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[", "a" * 300 + ".x"):
        yield Hostile(f"host {host[:30]}", COMPLETIONS, b'{"prompt": "a"}', headers={"Host": host})
    for origin in ("http://evil.example", "null", "", "file://", "http://127.0.0.1:1"):
        yield Hostile(f"origin {origin}", COMPLETIONS, b'{"prompt": "a"}', headers={"Origin": origin})
    for name in ("X-Request-Id", "X-SLO-Class", "X-Return-Error", "Authorization"):
        for value in ("x" * 5000, "%00", "²", "500"):
            if not (name == "X-Return-Error" and value == "500"):
                yield Hostile(f"{name} {value[:9]}", COMPLETIONS, b'{"prompt": "a"}', headers={name: value})
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "PATCH", "X"):
        yield Hostile(f"{method} of completions", COMPLETIONS, b"", method=method)
    for path in (
        "/",
        "//",
        "/v1/models/%ff%00",
        "/v1/models/" + "a/" * 2000,
        "/%2e%2e/%2e%2e/etc/passwd",
        "/metrics/x",
        "/v1/embeddings",
    ):
        yield Hostile(f"path {path[:30]}", path, b"", method="GET")


def large(size: int = 31 * 2**20) -> Iterator[Hostile]:
    """Bodies just below the limit of their length, of each kind of content."""

    def of(name: str, path: str, begin: bytes, part: bytes, end: bytes, between: bytes = b",") -> Hostile:
        count = (size - len(begin) - len(end)) // len(part + between)
        return Hostile(f"{name}, {size} bytes", path, begin + (part + between) * (count - 1) + part + end)

    for name, key, part in (
        ("texts", b"prompt", b'""'),
        ("ids", b"prompt", b"1"),
        ("fractions", b"prompt", b"1.5"),
        ("stops", b"stop", b'"a"'),
        ("stop tokens", b"stop_token_ids", b"1"),
        ("choices", b"guided_choice", b'"a"'),
        ("objects", b"x", b"{}"),
    ):
        yield of(name, COMPLETIONS, b'{"prompt": "a", "%s": [' % key, part, b"]}")
    for key in (b"prompt", b"guided_regex", b"guided_grammar", b"model", b"user"):
        for part in (b"a", b"\\u0041"):
            begin = b'{"prompt": "a", "%s": "' % key
            yield of(f"{key.decode()} of {part.decode()}", COMPLETIONS, begin, part, b'"}', between=b"")
    yield of("blanks", COMPLETIONS, b"", b" ", b'{"prompt": "a"}', between=b"")
    yield of("an enum", COMPLETIONS, b'{"prompt": "a", "guided_json": {"enum": [', b"1", b"]}}")
    message, text = b'{"role": "user", "content": ""}', b'{"type": "text", "text": ""}'
    yield of("messages", CHAT, b'{"messages": [', message, b"]}")
    yield of("parts", CHAT, b'{"messages": [{"role": "user", "content": [', text, b"]}]}")
    yield of("tools", CHAT, b'{"messages": [%s], "tools": [' % message, b'{"type": "function"}', b"]}")
    yield of("messages", "/tokenize", b'{"messages": [', message, b"]}")
    yield of("words", "/tokenize", b'{"return_token_strs": true, "prompt": "', b"a ", b'"}', between=b"")
    yield of("ids", "/detokenize", b'{"tokens": [', b"1", b"]}")
    yield of("kinds", "/admin/config", b'{"failures": {"kinds": [', b'"server_error"', b"]}}")


FIELDS = {
    COMPLETIONS: (
        *(
            "model",
            "max_tokens",
            "min_tokens",
            "n",
            "stream_options",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
        ),
        *(
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "stop",
            "stop_token_ids",
            "ignore_eos",
            "priority",
        ),
        *(
            "response_format",
            "structured_outputs",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "prompt",
        ),
        *(
            "logprobs",
            "echo",
            "best_of",
            "suffix",
            "logit_bias",
            "prompt_logprobs",
            "add_special_tokens",
            "user",
            "x",
        ),
    ),
    CHAT: (
        *("messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "chat_template"),
        *(
            "chat_template_kwargs",
            "add_generation_prompt",
            "continue_final_message",
            "logprobs",
            "functions",
            "stream",
        ),
    ),
}
ODD: tuple[Any, ...] = (
    *(True, -1, 0, 0.5, 2**31, 2**63, 10**300, 1e308, "", "x" * 5000, "\u0000", "é\U0001f600"),
    *([], {}, [[]], [None], [-1], [{}], {"a": 1}, {"": {"": []}}, _deep(50), _deep(200)),
)


def fuzzed() -> Iterator[Hostile]:
    """Every field with every odd value."""
    for path, fields in FIELDS.items():
        for name in fields:
            for number, value in enumerate(ODD):
                yield _of(f"{name} = odd {number}", path, **{name: value})
