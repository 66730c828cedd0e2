"""Names of numbers end with their units: `_ns`, `_tokens`, `_bytes`; `make lint` runs this, too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from sources import PRODUCT, modules

TIMES = {"ns", "us", "ms", "s"}
UNITS = TIMES | {"tokens", "blocks", "bytes", "gib", "gbps", "mbps", "hours"}
QUANTITIES = {
    *("time", "delay", "latency", "duration", "deadline", "timeout", "arrival", "interval", "horizon", "ttl"),
    *("lease", "period", "now", "wait", "gap"),
    *("memory", "bandwidth", "budget", "context", "prompt", "output", "capacity"),
}
"""Words at the end of a name that say what is measured, and not in what."""
NUMBER = re.compile(r"\b(int|float|Ints|Floats|int64|float64)\b")
ARRAY = re.compile(r"\b(Ints|Floats|NDArray)\b")
NO_NUMBER = re.compile(r"\b(Callable|str|Request|bool|tuple|dict|list|Sequence|Mapping)\b")
NUMBERS = {"len", "float", "ceil", "floor", "rint", "time", "monotonic", "perf_counter", "perf_counter_ns"}
"""Functions whose values are numbers whatever their arguments are."""
KEEPING_THE_UNIT = {"max", "min", "int", "abs", "round", "sort", "sorted", "maximum", "minimum"}
"""Functions whose values have the unit of their arguments."""
EXCEPTIONS = {
    "blis_py/calibrate/token_times.py: same_prompt": "numbers prompts",
    "blis_py/cluster/admission_settings.py: token_bucket_capacity": "BLIS's name of the setting",
    "blis_py/cluster/time/clock.py: now": "SimPy's name",
    "blis_py/core/config.py: receive_interval": "SGLang's name, in steps",
    "blis_py/core/config.py: prefill_schedule_interval": "vLLM's name, in steps",
    "blis_py/calibrate/fit/basis.py: max_context": "a column of step logs",
    "blis_py/core/features.py: max_context": "the same",
    "blis_py/core/request.py: TIMEOUT": "numbers outcomes",
    "blis_py/latency/fitted.py: max_context": "the same column",
    "blis_py/figures/run.py: values": "in the unit of the metric",
    "blis_py/figures/style.py: gap": "in inches, as all arguments",
    "blis_py/latency/linear.py: max_context": "the coefficient of that column",
    "blis_py/latency/trained.py: all_reduce_latency": "a factor",
    "blis_py/metrics/record.py: outputs": "counts tokens or blocks",
    "blis_py/models/weights.py: output": "bytes of a weight, as all fields",
    "blis_py/planning/_rates.py: budget": "an amount of money, as `blis.plan` names it",
    "blis_py/planning/api.py: budget": "the same",
    "blis_py/planning/job.py: gpu_time": "a factor",
    "blis_py/planning/job.py: host_time": "a factor",
    "blis_py/planning/job.py: output": "a factor",
    "blis_py/planning/job.py: prompt": "a factor",
    "blis_py/requests/table.py: output": "a factor",
    "blis_py/requests/table.py: prompt": "a factor",
    "blis_py/ui/_traffic.py: output": "a factor",
    "blis_py/ui/_traffic.py: prompt": "a factor",
    "blis_py/ui/state.py: output": "a factor",
    "blis_py/ui/state.py: prompt": "a factor",
    "blis_py/workload/spec_inference_perf.py: duration": "inference-perf's key",
    "engine/engine.py: prompt": "token ids",
    "engine/kernels/aot.py: accesses_before_wait": "counts accesses",
    "engine/lifecycle.py: prompt": "token ids",
}
"""Names as they are elsewhere, and numbers without a unit."""


def words_of(name: str) -> list[str]:
    return name.strip("_").lower().split("_")


def declared(tree: ast.Module) -> Iterator[tuple[int, str, ast.expr | None]]:
    """Names with annotations: parameters, variables, fields, and functions with what they return."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name, node.returns
            case ast.arg():
                yield node.lineno, node.arg, node.annotation
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield node.lineno, name, node.annotation


def without_unit(path: str, tree: ast.Module) -> Iterator[str]:
    """Numbers whose names end with a quantity."""
    for line, name, annotation in declared(tree):
        words = words_of(name)
        if words[-1].removesuffix("s") in QUANTITIES and words[0] not in ("by", "per"):
            text = "" if annotation is None else ast.unparse(annotation)
            alone = words[-1] in QUANTITIES or ARRAY.search(text)
            if alone and NUMBER.search(text) and not NO_NUMBER.search(text):
                yield f"{path}:{line}: {name}"


def undeclared(path: str, tree: ast.Module) -> Iterator[str]:
    """Numbers whose names end with a quantity, without an annotation: by what they are assigned."""
    for target, value in assigned(tree):
        words = words_of(name_of(target)) if isinstance(target, ast.Name | ast.Attribute) else [""]
        if words[-1] in QUANTITIES and words[0] not in ("by", "per") and is_number(value):
            yield f"{path}:{target.lineno}: {name_of(target)}"


def is_number(value: ast.expr) -> bool:
    """Whether a value is a number by its form: a literal, arithmetic with one, a name with a unit."""
    match value:
        case ast.Constant(value=constant):
            return type(constant) in (int, float)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return is_number(operand)
        case ast.BinOp(op=ast.Div(), right=ast.Constant(value=str())):
            return False  # a path
        case ast.BinOp(op=ast.Div() | ast.FloorDiv()):
            return True
        case ast.BinOp(left=one, right=other) | ast.IfExp(body=one, orelse=other):
            return is_number(one) or is_number(other)
        case ast.Call(func=function, args=[*values]):
            name = name_of(function)
            return name in NUMBERS or (name in KEEPING_THE_UNIT and any(map(is_number, values)))
    return bool(unit_of(name_of(value)))


def name_of(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return name_of(value)
    return ""


def unit_of(name: str) -> str:
    """The unit that a name ends with; rates have none here."""
    words = words_of(name)
    return words[-1] if len(words) > 1 and words[-1] in UNITS and "per" not in words else ""


def unit_in(value: ast.expr) -> str:
    """The unit of a value, if names in it tell: of a name, a sum, a choice, a smallest or largest."""
    match value:
        case ast.BinOp(left=one, op=ast.Add() | ast.Sub(), right=other) | ast.IfExp(body=one, orelse=other):
            return unit_in(one) or unit_in(other)
        case ast.Call(func=function, args=[*values]) if name_of(function) in KEEPING_THE_UNIT:
            return next(filter(None, map(unit_in, values)), "")
    return unit_of(name_of(value))


def assigned(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and values of assignments, those of tuples one by one."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from zip(targets, values, strict=False)
            case ast.Assign(targets=targets, value=value):
                yield from ((target, value) for target in targets)
            case ast.NamedExpr(target=target, value=value):
                yield target, value


def copies(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Variables and fields, each with the unit of the value that it gets."""
    for target, value in assigned(tree):
        if isinstance(target, ast.Name | ast.Attribute):
            yield target.lineno, name_of(target), unit_in(value)


def together(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Names that are added, subtracted or compared, and keywords, each with the unit of the other value."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.BinOp(left=one, op=ast.Add() | ast.Sub(), right=other)
                | ast.AugAssign(target=one, op=ast.Add() | ast.Sub(), value=other)
                | ast.Compare(left=one, comparators=[other])
            ):
                yield node.lineno, name_of(one), unit_in(other)
            case ast.keyword(arg=str(name), value=value):
                yield node.lineno, name, unit_in(value)


def lost(path: str, tree: ast.Module) -> Iterator[str]:
    """Times under a name without their unit; single letters are coordinates."""
    for line, name, unit in copies(tree):
        if len(name) > 1 and name not in UNITS and unit in TIMES and not unit_of(name):
            yield f"{path}:{line}: {name}"


def mixed(path: str, tree: ast.Module) -> Iterator[str]:
    """Values of two units in one sum, comparison or assignment."""
    for line, name, unit in (*copies(tree), *together(tree)):
        if unit_of(name) and unit not in ("", unit_of(name)):
            yield f"{path}:{line}: {name}"


@cache
def hits(part: str) -> list[str]:
    kinds = (without_unit, undeclared, lost, mixed)
    return [hit for path, tree in modules(part).items() for kind in kinds for hit in kind(path, tree)]


def place(hit: str) -> str:
    """File and name, without the line."""
    return re.sub(r":\d+:", ":", hit)


@pytest.mark.slow
@pytest.mark.parametrize("part", PRODUCT)
def test_names_of_numbers_end_with_their_units(part: str) -> None:
    found = [hit for hit in hits(part) if place(hit) not in EXCEPTIONS]
    assert not found, "add the unit to the name:\n" + "\n".join(found)


@pytest.mark.slow
def test_every_exception_is_needed() -> None:
    assert EXCEPTIONS.keys() <= {place(hit) for part in PRODUCT for hit in hits(part)}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(delay: int): ...", ["delay"]),
        ("def f(delay_ns: int, per_token_delay_us: float): ...", []),
        ("class A:\n  timeout: float | None = None", ["timeout"]),
        ("def latency(self) -> float: ...", ["latency"]),
        ("waits: Ints = a\nprompts: int = 3\ntimeout: Callable[[int], None] = b", ["waits"]),
        ("def per_wait() -> int: ...\nby_arrival: int = 1", []),
        ("end = run.end_ns\nend_ns = run.end_ns\nn = run.end_ns\nlast[0] = end_ns\nns = end_ns", ["end"]),
        ("first, last_ns = a_ns, b_ns\nrate = tokens_per_s", ["first"]),
        (
            "budget = 64\n_delay = -x // 2\nprompt = a.prompt_tokens[rows]\nx.context = ceil(y)",
            ["budget", "_delay", "prompt", "context"],
        ),
        ("output = 'a'\noutput = path / 'a'\nprompt = text + more\nwait = True\nprompt_tokens = 1", []),
        ("last = max(a_ns, 0) + 1\nany_ns = a_ns if x else 0\nhalf = a_ns / 2\ndone = a_ns > b_ns", ["last"]),
    ],
)
def test_what_counts_as_a_name_without_a_unit(source: str, found: list[str]) -> None:
    tree = ast.parse(source)
    kinds = (without_unit, undeclared, lost)
    assert [hit.rpartition(" ")[2] for kind in kinds for hit in kind("x", tree)] == found


@pytest.mark.parametrize(
    "source",
    [
        "a_ns = b_us",
        "a_ns + b_ms",
        "x.a_ns > y.b_s",
        "a_tokens -= b_blocks",
        "f(end_s=begin_ns)",
        "a_ns[0] - b_us",
        "a_ms = min(b_ns, c_ns)",
    ],
)
def test_values_of_two_units_are_not_mixed(source: str) -> None:
    assert len([*mixed("x", ast.parse(source))]) == 1
    assert not [*mixed("x", ast.parse("a_ns = b_ns + c_ns\nd_tokens = size * e_blocks\nn_ms < 3"))]
