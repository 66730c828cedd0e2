"""The tiny engine under grammars drawn at random, and whether an output is of its form."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from stub_engine import run_all

from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from engine.tiny import checkpoint

EOS = 257
PROMPT = "record: name=bo age=7 -> "


def tiny_engine(**settings: Any) -> LLMEngine:
    defaults = {"max_model_len": 512, "num_kv_blocks": 128, "max_num_seqs": 16}
    model = str(checkpoint("ar"))
    return build_engine(EngineConfig(**{"model": model, "device": "cpu", **defaults, **settings}))


def served(engine: LLMEngine, *params: SamplingParams, prompt: str = PROMPT) -> list[Sequence]:
    sequences = [engine.add_request(prompt, own) for own in params]
    run_all(engine)
    return sequences


def constrained(**settings: Any) -> SamplingParams:
    """Hot, so that nothing but the grammar keeps the output in shape."""
    return SamplingParams(**{"temperature": 8.0, "max_tokens": 300, **settings})


def random_regex(rng: random.Random, depth: int = 3) -> str:
    kind = rng.choice(["letter", "class", "digit"] + ["all", "either", "times"] * (depth > 0))
    if kind == "letter":
        return re.escape(rng.choice('abcxyz09{}".é'))
    if kind == "class":
        return rng.choice(["[a-f]", "[^a-z]", ".", r"[\d_]", "[]x]", r"\s"])
    if kind == "digit":
        return r"\d"
    if kind == "all":
        return "".join(random_regex(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    if kind == "either":
        return f"({random_regex(rng, depth - 1)}|{random_regex(rng, depth - 1)})"
    return f"(?:{random_regex(rng, depth - 1)}){rng.choice(['{0,3}', '{2}', '?', '{1,2}'])}"


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    kind = rng.choice(["string", "integer", "boolean", "enum"] + ["object", "array", "anyOf"] * (depth > 0))
    if kind == "enum":
        return {"enum": rng.sample(["a", 'b"\n', 1, None, True], rng.randint(1, 3))}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(2)]}
    schema: dict[str, Any] = {"type": kind}
    if kind == "string":
        schema |= rng.choice(
            [{"minLength": 1, "maxLength": 5}, {"pattern": "^a[b-d]{1,4}$"}, {"maxLength": 3}]
        )
    elif kind == "integer":
        low = rng.choice([-50, 0, 7])
        schema |= {"minimum": low, "maximum": low + rng.randint(0, 300)}
    elif kind == "array":
        schema |= {"items": random_schema(rng, depth - 1), "minItems": rng.randint(0, 1), "maxItems": 2}
    elif kind == "object":
        names = rng.sample(["name", "age", "x y", "é"], rng.randint(0, 3))
        schema["properties"] = {name: random_schema(rng, depth - 1) for name in names}
        schema["required"] = [name for name in names if rng.random() < 0.6]
        schema["additionalProperties"] = False
    return schema


def fits(value: Any, schema: dict[str, Any]) -> bool:
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    if "anyOf" in schema:
        return any(fits(value, inner) for inner in schema["anyOf"])
    match schema["type"]:
        case "string":
            long_enough = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 99)
            return (
                isinstance(value, str) and long_enough and bool(re.search(schema.get("pattern", ""), value))
            )
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "boolean":
            return isinstance(value, bool)
        case "array":
            fit = isinstance(value, list) and all(fits(each, schema["items"]) for each in value)
            return fit and schema["minItems"] <= len(value) <= schema["maxItems"]
    known = schema["properties"]
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= set(value) <= set(known)
        and all(fits(each, known[name]) for name, each in value.items())
    )


def nested(text: str) -> bool:
    """Of the grammar below: parentheses around a list of letters and of the same."""
    while (shorter := re.sub(r"\((?:[xy](?:,[xy])*)\)", "x", text)) != text:
        text = shorter
    return text == "x"


NESTED = """
root ::= "(" item ("," item){0,2} ")"
item ::= "x" | "y" | root
"""


def of_its_form(text: str, params: SamplingParams) -> bool:
    form: Any = params.structured_outputs
    if form.form == "regex":
        return re.fullmatch(form.regex, text, re.ASCII) is not None
    if form.form == "json":
        return fits(json.loads(text), json.loads(form.json))
    return nested(text)


def random_forms(seed: int, count: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    makes = [
        lambda: {"regex": random_regex(rng)},
        lambda: {"json": random_schema(rng), "disable_any_whitespace": True},
        lambda: {"grammar": NESTED},
    ]
    return [rng.choice(makes)() for _ in range(count)]


CROWDED = {"num_kv_blocks": 24, "max_num_batched_tokens": 40, "max_model_len": 360}
