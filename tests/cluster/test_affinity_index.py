"""The router's index of prompts beside a list of blocks in order of use."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.cluster.routing.affinity import AffinityIndex
from blis_py.core.request import Request

SIZE, CAPACITY, INSTANCES = 10, 7, 3


def request(keys: Sequence[int], tokens: int, extra: str | None = None) -> Request:
    return Request("r", 0, tokens, block_keys=list(keys), extra_key=extra)


class Listed:
    """Blocks of one instance, least recently used first; a private one is None."""

    def __init__(self) -> None:
        self.blocks: list[object] = []

    def sent(self, one: Request) -> None:
        full = one.prompt_tokens // SIZE
        shared = [(one.extra_key, key) for key in one.block_keys[:full]]
        self.blocks = [block for block in self.blocks if block not in shared]
        self.blocks += shared + [None] * (full - len(shared))
        del self.blocks[: max(len(self.blocks) - CAPACITY, 0)]

    def held(self, one: Request) -> int:
        keys = one.block_keys[: one.prompt_tokens // SIZE]
        held = [(one.extra_key, key) in self.blocks for key in keys]
        return [*held, False].index(False)


prompts = st.builds(
    lambda first, shared, rest, extra: request(
        [100 * first + place for place in range(shared)], SIZE * shared + rest, extra
    ),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(1, 45),
    st.sampled_from([None, None, "lora"]),
)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(["sent"] * 8 + ["draining"]), prompts, st.integers(0, 2)), max_size=30)
)
def test_the_index_is_a_list_of_the_blocks_used_last(events: list[tuple[str, Request, int]]) -> None:
    index, listed = AffinityIndex(SIZE, CAPACITY), {place: Listed() for place in range(INSTANCES)}
    for place in range(INSTANCES):
        index.change(place, "added")
    for kind, one, place in events:
        if kind == "draining":
            index.change(place, "draining")
            listed.pop(place, None)
        elif place in listed:
            index.sent(one, place)
            listed[place].sent(one)
        found = dict.fromkeys(range(INSTANCES), 0)
        for mask, blocks in index.held(one):
            found |= {each: blocks for each in range(INSTANCES) if mask >> each & 1}
        assert {each: found[each] for each in listed} == {each: own.held(one) for each, own in listed.items()}


def test_what_is_left_of_an_unshareable_prompt_stays_the_least_recent() -> None:
    """Six private blocks: two shared ones displace one of them, and two others two more."""
    index = AffinityIndex(SIZE, CAPACITY)
    index.change(0, "added")
    index.sent(request([], 60), 0)
    for keys in ((1, 2), (3, 4)):
        index.sent(request(keys, 20), 0)
    assert index.held(request((1, 2), 20)) == [(1, 2)]
