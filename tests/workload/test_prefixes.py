"""Nested prefixes: who shares what with whom."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from blis_py.workload import Content, RequestTable, generate
from blis_py.workload.spec import WorkloadSpec

LONG = {"type": "exponential", "params": {"mean": 3000}}
CLIENT = {
    "id": "a",
    "rate_fraction": 1.0,
    "arrival": {"process": "poisson"},
    "input_distribution": {"type": "exponential", "params": {"mean": 100}},
    "output_distribution": {"type": "constant", "params": {"value": 10}},
}
SYSTEM = {"name": "system", "tokens": 500}
DOCUMENT = {"name": "document", "tokens": 3000, "pool": 20, "zipf": 1.0}


def made(*clients: dict[str, object], count: int = 2000) -> RequestTable:
    values = {"aggregate_rate": 10.0, "num_requests": count, "clients": [CLIENT | each for each in clients]}
    return generate(WorkloadSpec.model_validate(values))


def contents(table: RequestTable) -> list[Content]:
    return [table.contents[at] if at >= 0 else () for at in table.content.tolist()]


def test_a_prompt_is_its_prefixes_and_then_its_own_tokens() -> None:
    plain, nested = made({}), made({"prefixes": [SYSTEM, DOCUMENT]})
    assert np.array_equal(nested.prompt_tokens, plain.prompt_tokens + 3500)
    for column in ("arrival_ns", "output_tokens"):
        assert np.array_equal(getattr(nested, column), getattr(plain, column))
    for content in contents(nested):
        assert content[0] == ("system/0", 500)
        assert content[1] in {(f"document/{text}", 3000) for text in range(20)}


def test_popularity_follows_zipfs_law() -> None:
    table = made({"prefixes": [DOCUMENT]}, count=20_000)
    drawn = Counter(content[0][0] for content in contents(table))
    harmonic = sum(1 / k for k in range(1, 21))
    for text in (0, 1, 4, 19):
        expected = 20_000 / (text + 1) / harmonic
        assert drawn[f"document/{text}"] == pytest.approx(expected, abs=4 * expected**0.5)


def test_without_an_exponent_all_texts_are_alike() -> None:
    table = made({"prefixes": [DOCUMENT | {"zipf": 0.0}]}, count=20_000)
    drawn = Counter(content[0][0] for content in contents(table))
    assert all(count == pytest.approx(1000, abs=130) for count in drawn.values())
    assert len(drawn) == 20


def test_every_text_has_its_own_length_whichever_client_uses_it() -> None:
    pool = {"name": "document", "tokens_distribution": LONG, "pool": 50}
    table = made({"id": "a", "prefixes": [SYSTEM, pool]}, {"id": "b", "prefixes": [pool | {"zipf": 2.0}]})
    lengths: dict[str | int, set[int]] = {}
    for content in contents(table):
        lengths.setdefault(content[-1][0], set()).add(content[-1][1])
    assert all(len(found) == 1 for found in lengths.values())
    assert len({next(iter(found)) for found in lengths.values()}) > 40


def test_clients_share_the_texts_of_a_pool_by_its_name() -> None:
    table = made(
        {"id": "a", "prefixes": [SYSTEM, DOCUMENT]},
        {"id": "b", "prefixes": [SYSTEM, DOCUMENT | {"name": "other"}]},
    )
    first = {content[0] for content in contents(table)}
    assert first == {("system/0", 500)}
    assert {str(content[1][0]).split("/")[0] for content in contents(table)} == {"document", "other"}


def test_a_new_level_leaves_the_draws_of_the_others_as_they_were() -> None:
    one = contents(made({"prefixes": [DOCUMENT]}))
    two = contents(made({"prefixes": [SYSTEM, DOCUMENT, {"name": "chapter", "tokens": 64, "pool": 7}]}))
    assert [content[0] for content in one] == [content[1] for content in two]


def test_asking_for_more_requests_continues_the_prefixes() -> None:
    client = {"prefixes": [SYSTEM, DOCUMENT]}
    assert contents(made(client, count=300)) == contents(made(client, count=1500))[:300]
