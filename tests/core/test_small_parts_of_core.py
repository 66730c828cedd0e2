"""Texts of flags, bounds, light dataclasses and worths of nodes, by hand."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, field
from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.core import flag_texts
from blis_py.core.bounds import LAST_NS, check_count, clock_ns, in_seconds
from blis_py.core.checks import _check
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig, check_diffusion_config
from blis_py.core.eviction import EVICTION_POLICIES
from blis_py.core.lifecycle import note_scheduled
from blis_py.core.light_dataclass import copied, dataclass
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.settings import setting
from blis_py.core.slo import instance_priorities
from blis_py.errors import InputError


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (flag_texts.numbers, "1,2.5,-3", [1.0, 2.5, -3.0]),
        (flag_texts.numbers, "1,,2", None),
        (flag_texts.whole_numbers, "1, 2,40", [1, 2, 40]),
        (flag_texts.whole_numbers, "1,-2", None),
        (flag_texts.whole_numbers, "1,2.0", None),
        (flag_texts.scorers, "a:1, b : 2.5", {"a": 1.0, "b": 2.5}),
        (flag_texts.scorers, "a:1,a:2", None),
        (flag_texts.scorers, "a=1", None),
        (flag_texts.scorers, ":1", None),
        (flag_texts.scorers, "a:", None),
        (flag_texts.scorers, "a:x", None),
        (flag_texts.scorers, "", None),
        (flag_texts.pairs("x", "y", read=flag_texts.word), "a=b", {"a": "b"}),
        (flag_texts.pairs("x", "y", read=flag_texts.word), "a=", None),
        (flag_texts.pairs("x", "y", read=flag_texts.digits), "a=07", {"a": 7}),
        (flag_texts.pairs("x", "y", read=flag_texts.digits), "a=+7", None),
    ],
)
def test_texts_of_flags_are_read_or_refused(read: Any, text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(InputError):
            read("--flag", text)
    else:
        assert read("--flag", text) == value


@pytest.mark.parametrize(
    ("value", "unit_ns", "least_ns", "ns"),
    [
        (0, 5, 0, 0),
        (3, 5, 0, 15),
        (0.5, 5, 0, 2),
        (1, 1, 1, 1),
        (LAST_NS, 1, 0, LAST_NS),
        (LAST_NS / 10**9, 10**9, 0, LAST_NS),
        (0, 1, 1, "must be a positive duration"),
        (0.4, 1, 1, "must be a positive duration"),
        (-1, 1, 0, "must not be negative"),
        (LAST_NS + 1, 1, 0, "is more than a century"),
    ],
)
def test_a_time_is_within_a_century(value: float, unit_ns: int, least_ns: int, ns: Any) -> None:
    if isinstance(ns, int):
        assert clock_ns(value, unit_ns, key="k", least_ns=least_ns) == ns
        return
    with pytest.raises(InputError, match=ns):
        clock_ns(value, unit_ns, key="k", least_ns=least_ns)


def test_a_count_may_be_either_bound() -> None:
    assert [check_count(value, least=2, most=4, key="k") for value in (2, 3, 4)] == [2, 3, 4]
    for value, message in ((1, "at least 2"), (5, "at most 4")):
        with pytest.raises(InputError, match=message):
            check_count(value, least=2, most=4, key="k")


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (60_000, "0.00006 s"),
        (90 * 10**9, "90 s"),
        (0, "0 s"),
        (10**12 + 5 * 10**8, "1,000.5 s"),
        (100 * 10**9, "100 s"),
    ],
)
def test_seconds_have_all_their_digits(ns: int, text: str) -> None:
    assert in_seconds(ns) == text


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (0, {"least": 0}, ""),
        (-1, {"least": 0}, "must not be negative"),
        (2, {"least": 2}, ""),
        (1, {"least": 2}, "must be at least 2"),
        (float("nan"), {"least": 2}, "must be at least 2"),
        (0.1, {"above": 0}, ""),
        (0, {"above": 0}, "must be above 0"),
        (5, {"most": 5}, ""),
        (5.1, {"most": 5}, "must be at most 5"),
        ("a", {"choices": ("a", "b"), "least": 3}, ""),
        ("c", {"choices": ("a", "b")}, "unknown choice"),
        ("c", {"least": 3}, ""),
        (None, {"least": 3}, ""),
        ("nosuch", {"choices": "scheduler"}, "unknown choice"),
        ("fcfs", {"choices": "scheduler"}, ""),
    ],
)
def test_settings_are_within_their_limits(value: Any, limits: dict[str, Any], message: str) -> None:
    if not message:
        _check("k", value, limits)
        return
    with pytest.raises(InputError, match=message):
        _check("k", value, limits)


def test_priorities_of_instances_are_those_of_the_cluster_turned_round() -> None:
    assert instance_priorities() == {
        **{"critical": 0, "standard": 1, "batch": 5, "sheddable": 6, "background": 7, "": 1}
    }
    assert instance_priorities({"standard": 100, "own": -100}) == {
        **{
            "critical": 96,
            "standard": 0,
            "batch": 101,
            "sheddable": 102,
            "background": 103,
            "own": 200,
            "": 0,
        }
    }
    for value in (101, -101):
        with pytest.raises(InputError, match="priority out of range"):
            instance_priorities({"own": value})


def test_what_is_evicted_first_is_worth_least() -> None:
    family = SimpleNamespace(saved_blocks=9)
    node: Any = SimpleNamespace(last_use=3, hits=5, created=2, priority=7, family=family)
    assert {name: worth(node) for name, worth in EVICTION_POLICIES.items()} == {
        **{"lru": (3,), "lfu": (5, 3), "fifo": (2,), "mru": (-3,), "priority": (-7, 3)},
        "cold-subtree": (9, 3),
    }


@dataclass(slots=True)
class Plain:
    one: int
    two: list[int] = field(default_factory=list)
    three: int = field(default=3, kw_only=True)
    four: int = field(default=4, init=False, repr=False, compare=False)


@dataclass(frozen=True)
class Frozen:
    name: str = setting("a")
    inner: Any = None

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError(self.name)


def test_a_light_dataclass_is_made_like_any_other() -> None:
    made = Plain(1, [2], three=5)
    assert (made.one, made.two, made.three, made.four) == (1, [2], 5, 4)
    assert Plain(1).two is not Plain(1).two
    assert repr(made) == "Plain(one=1, two=[2], three=5)"
    assert made == Plain(one=1, two=[2], three=5)
    assert made != Plain(1, [2])
    assert made != (1, [2], 5)
    other = Plain(1, [2], three=5)
    other.four = 9
    assert made == other
    assert pickle.loads(pickle.dumps(other)).four == 9


@pytest.mark.parametrize(
    ("args", "given", "message"),
    [
        ((), {}, "missing argument: 'one'"),
        ((1, [], 3), {}, "takes 2 positional arguments but 3 were given"),
        ((1,), {"one": 2}, "multiple values for argument 'one'"),
        ((1,), {"five": 2}, "unexpected keyword argument 'five'"),
        ((1,), {"four": 2}, "unexpected keyword argument 'four'"),
    ],
)
def test_wrong_arguments_are_refused(args: tuple[Any, ...], given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Plain(*args, **given)


def test_a_frozen_one_has_a_hash_and_does_not_change() -> None:
    one = Frozen("b", 2)
    assert hash(one) == hash(Frozen("b", 2))
    assert len({one, Frozen("b", 2), Frozen("c", 2)}) == 2
    for change in (lambda: setattr(one, "name", "c"), lambda: delattr(one, "name")):
        with pytest.raises(FrozenInstanceError):
            change()
    with pytest.raises(ValueError, match="bad"):
        Frozen("bad")


def test_copies_are_mappings_of_their_own() -> None:
    inner = [1, (2, Frozen("x"))]
    found = copied(Frozen("b", {"k": inner}))
    assert found == {"name": "b", "inner": {"k": [1, (2, {"name": "x", "inner": None})]}}
    assert found["inner"]["k"] is not inner
    assert copied(7) == 7


@pytest.mark.parametrize(
    ("before_ns", "now_ns", "scheduled_ns"), [(-1, 5, 5), (-1, 0, 0), (0, 5, 0), (3, 5, 3)]
)
def test_a_request_is_scheduled_once(before_ns: int, now_ns: int, scheduled_ns: int) -> None:
    request = Request("r", 0, 1)
    request.scheduled_ns = before_ns
    note_scheduled([request], now_ns)
    assert request.scheduled_ns == scheduled_ns


def test_requests_that_run_are_committed_and_those_that_wait_are_not() -> None:
    scheduler = Scheduler(SchedulerConfig(num_kv_blocks=20, max_model_len=20, block_size=4, max_num_seqs=1))
    assert scheduler.committed == 0
    for name in "ab":
        assert scheduler.add(Request(name, 0, 4, output_tokens=3)) is None
    assert scheduler.committed == 0
    scheduler.schedule(0)
    assert (scheduler.committed, scheduler.queue_depth) == (1, 1)


@pytest.mark.parametrize("key", ["max_model_len", "long_prefill_token_threshold"])
def test_a_limit_holds_a_diffusion_block(key: str) -> None:
    def check(value: int) -> None:
        limits: Any = {"max_model_len": 64, key: value}
        config = SchedulerConfig(num_kv_blocks=10, block_size=32, max_num_seqs=1, **limits)
        check_diffusion_config(config, DiffusionConfig(block_tokens=32))

    check(32)
    with pytest.raises(InputError, match=f"{key}: is less than a diffusion block of 32 tokens"):
        check(31)
