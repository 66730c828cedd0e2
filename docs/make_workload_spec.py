"""Writes what the models of the workload spec say of their keys: the page, and the JSON schema for editors.

python docs/make_workload_spec.py
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from blis_py.workload.spec import NOT_YET, WorkloadSpec
from blis_py.workload.spec_base import Strict

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "workload-spec.md"
SCHEMA = ROOT / "workloads" / "workload.schema.json"
HEAD = """\
# The workload spec, key by key

Made by `python docs/make_workload_spec.py` from the models that read the file.

`--workload-spec FILE` reads the YAML workload specs of BLIS, version 2, with some keys of our own.
Unknown keys are errors, times are in µs where their name ends so, and all keys but those marked *needed*
are optional. [`workloads/`](../workloads/) has commented examples. Editors complete a spec that begins
with `# yaml-language-server: $schema=` and the path of
[`workload.schema.json`](../workloads/workload.schema.json).
"""
DIFFERENCES = """
## Where BLIS is different

- **Windows**: a window with its own rate has that rate: 2 requests/s for 1, 5 and 10 s make 2, 10 and 20
  on average; BLIS stretches a number of gaps to the window and loses the last request (1, 9 and 19).
- **Windows and an aggregate rate**: at every time the aggregate rate is shared by those who send then;
  BLIS gives each window its share among all windows that overlap it anywhere.
- **Clients without windows** send beside those with windows; where windows of others have a `trace_rate`,
  they are an error, and BLIS lets them send nothing.
- **`diurnal`** is a cosine that repeats every day; in BLIS full rate for a part of every hour, then
  silence, and it ends after one day. **`drain`** is a straight line; in BLIS ten such steps.
- **`horizon`** does not end the simulation where a number of requests has ended the load before it.
- **Sessions** that wait for answers, and **`network`**: see
  [conversations](sessions.md#for-those-who-come-from-blis).
- **`servegen_data`**: every client keeps its rate, burstiness and lengths; BLIS makes one cohort of each
  class with the average of its clients' laws, and ignores `time_window`, `span_start` and `span_end`.
- **`inference_perf`**: every stage has exactly its number of requests; in BLIS only a single one does.
"""
DIFFUSION = {"kind", "block_size", "steps", "commit_rounds"}
"""Keys of a workload that each of its clients may have, too."""


def explained() -> dict[str, Any]:
    """The schema of the whole spec, with what stands below each key in the sources of its model.

    Pydantic can look that up by itself, but does so whenever the models are imported, which takes long.
    """
    models = list(_models(Strict))
    for model in models:
        for name, text in _explanations(model):
            model.model_fields[name].description = text
    for model in models:
        model.model_rebuild(force=True)
    return WorkloadSpec.model_json_schema()


def _models(base: type[Strict]) -> Iterator[type[Strict]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def _explanations(model: type[Strict]) -> Iterator[tuple[str, str]]:
    for base in reversed(model.__mro__[: model.__mro__.index(Strict)]):
        (source,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(source, ast.ClassDef)
        for field, below in pairwise(source.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                yield ast.unparse(field.target), inspect.cleandoc(ast.literal_eval(below.value))


def page() -> str:
    schema = explained()
    models = {"WorkloadSpec": schema} | schema["$defs"]
    order = [
        *("WorkloadSpec", "ClientSpec", "CohortSpec", "ArrivalSpec", "DistributionSpec", "LifecycleSpec"),
        *("WindowSpec", "DiurnalSpec", "SpikeSpec", "DrainSpec", "PrefixSpec", "MultimodalSpec"),
        *("ReasoningSpec", "MultiTurnSpec", "NetworkSpec"),
        *("ServeGenSpec", "InferencePerfSpec", "StageSpec", "SharedPrefixSpec"),
    ]
    assert sorted(order) == sorted(models)
    own = set(models["ClientSpec"]["properties"])
    left_out = {"CohortSpec": own, "ClientSpec": DIFFUSION}
    sections = [_section(name, models[name], left_out.get(name, set())) for name in order]
    return HEAD + "".join(sections) + _not_yet() + DIFFERENCES


def schema_text() -> str:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | explained()
    return json.dumps(_untitled(schema), indent=1) + "\n"


def _untitled(schema: Any) -> Any:
    """Without the titles that are the keys once more."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    titles = {key for key, each in schema.items() if key == "title" and isinstance(each, str)}
    return {key: _untitled(each) for key, each in schema.items() if key not in titles}


def _title(name: str) -> str:
    letters = name.removesuffix("Spec")
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in letters)
    return words.strip().capitalize()


def _section(name: str, model: dict[str, Any], left_out: set[str]) -> str:
    lines = [f"\n## {_title(name)}\n", f"{_begin(model['description'])}\n"]
    if name == "CohortSpec":
        lines.append("Beside these keys it has all those of a [client](#client).\n")
    elif left_out:
        lines.append(
            "Beside these keys it has `kind` and those of diffusion, as the [workload](#workload).\n"
        )
    needed = model.get("required", ())
    for key, what in model["properties"].items():
        if key not in left_out:
            absent = ", *needed*" if key in needed else _absent(what)
            lines.append(f"- `{key}` ({_type(what)}{absent}): {_flat(what.get('description', ''))}")
    return "\n".join(lines) + "\n"


def _begin(text: str) -> str:
    """Two sentences: the keys explain the rest, and so does the schema."""
    return " ".join(re.split(r"(?<=\.) (?=[A-Z`])", _flat(text))[:2])


def _flat(text: str) -> str:
    return " ".join(text.split())


def _absent(what: dict[str, Any]) -> str:
    value = what.get("default")
    return "" if value in (None, "", [], {}, 0, False) else f", `{json.dumps(value)}`"


def _type(what: dict[str, Any]) -> str:
    if "$ref" in what:
        title = _title(what["$ref"].rsplit("/", 1)[-1]).lower()
        return f"[{title}](#{title.replace(' ', '-')})"
    if "anyOf" in what:
        return " or ".join(_type(each) for each in what["anyOf"] if each.get("type") != "null")
    if "enum" in what:
        return ", ".join(f"`{value}`" for value in what["enum"] if value)
    if "const" in what:
        return f"`{what['const']}`"
    if what.get("type") == "array":
        return f"list of {_type(what['items'])}"
    kinds = what.get("type", "anything")
    if isinstance(kinds, list):
        return "text"
    name = {"integer": "integer", "number": "number", "string": "text", "boolean": "boolean"}
    return name.get(kinds, {"object": "mapping"}.get(kinds, kinds)) + _bounds(what)


def _bounds(what: dict[str, Any]) -> str:
    texts = [
        f"{sign} {what[key]:,g}"
        for key, sign in (("exclusiveMinimum", ">"), ("minimum", "≥"), ("maximum", "≤"))
        if key in what and abs(what[key]) <= 1e9
    ]
    return f" {', '.join(texts)}" if texts else ""


def _not_yet() -> str:
    lines = [f"- `{key}`: {instead}." for key, instead in sorted(NOT_YET.items())]
    head = "\n## Not supported yet\n\nOf clients and cohorts. They are errors, unless they are empty.\n\n"
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(schema_text(), encoding="utf-8")
