"""What the radix tree costs: matching a long prompt, evicting, and both in a tree of 100,000 nodes.

    python benchmarks/radix.py [--quick]

Prints a table; every figure is CPU time, the quickest of several rounds, with the speed of the machine at
that moment (see README.md) so that it can be compared.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable

from measure import calibrate, pin

from blis_py.core.kv import KeySpace
from blis_py.core.radix import RadixTree
from blis_py.core.radix_node import Keys

_ROUNDS = 7


def quickest_us(action: Callable[[], object], times: int) -> float:
    """CPU microseconds per call."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.process_time_ns()
        for _ in range(times):
            action()
        best = min(best, (time.process_time_ns() - began) / times / 1000)
    return best


def put(tree: RadixTree, keys: Keys, first_block: int) -> None:
    """Insert what the tree lacks of `keys`, as a request that ends."""
    match = tree.match(keys, len(keys))
    node = tree.lock(match)
    rest = keys[match.blocks :]
    if rest:
        node, _ = tree.insert(node, rest, list(range(first_block, first_block + len(rest))))
    tree.unlock(node)


def prompt(block_size: int, runs: int) -> tuple[RadixTree, Keys]:
    """A tree that holds a prompt of 4,096 tokens, with a branch at the end of each of its runs."""
    tree, space = RadixTree(), KeySpace(block_size)
    pieces = [(f"run {i}", 4096 // runs) for i in range(runs)]
    keys: Keys = list(space.keys(pieces))
    put(tree, keys, 0)
    for end in range(1, runs):
        put(tree, list(space.keys([*pieces[:end], ("another", block_size)])), 10_000 * end)
    return tree, keys


def forest(nodes: int) -> tuple[RadixTree, list[Keys]]:
    """About so many nodes: system prompts, documents below them, questions below those."""
    tree, space, rng = RadixTree(), KeySpace(16), random.Random(1)
    prompts: list[Keys] = []
    blocks = 0
    while len(prompts) < nodes:
        document = rng.randrange(nodes // 5)
        runs = [(f"system {document % 50}", 512), (f"document {document}", 1024), (f"{len(prompts)}", 64)]
        keys: Keys = list(space.keys(runs))
        put(tree, keys, blocks)
        blocks += len(keys)
        prompts.append(keys)
    return tree, prompts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small tree, few rounds")
    quick = parser.parse_args().quick
    pin()
    gc.disable()
    print(f"calibration {calibrate():.0f} ns\n")
    print(f"{'matching 4,096 tokens, keys prepared':56} {'CPU us':>8}")
    for block_size, runs in ((16, 1), (16, 8), (16, 64), (1, 1), (256, 1)):
        tree, keys = prompt(block_size, runs)
        assert tree.match(keys, len(keys)).blocks == 4096 // block_size
        cost = quickest_us(lambda: tree.match(keys, len(keys)), 50 if quick else 1000)  # noqa: B023
        print(f"  blocks of {block_size:3}, {runs:2} nodes on the way {'':22} {cost:8.2f}")
    tree, keys = prompt(16, 8)
    match = tree.match(keys, len(keys))
    cost = quickest_us(lambda: tree.holds(match, keys, len(keys)), 1000)
    print(f"{'  asking again while nothing has changed there':56} {cost:8.2f}")
    tree, keys = prompt(16, 8)
    cost = quickest_us(lambda: tree.unlock(tree.lock(tree.match(keys, len(keys)))), 1000)
    print(f"{'  match, lock and unlock, 8 nodes on the way':56} {cost:8.2f}")

    print()
    for size in (1000, 5000) if quick else (1000, 10_000, 80_000):
        began = time.process_time()
        tree, prompts = forest(size)
        built_us = (time.process_time() - began) * 1e6 / size
        nodes = sum(1 for _ in tree.nodes())
        some = random.Random(2).sample(prompts, 200)
        found = quickest_us(lambda: [tree.match(keys, len(keys)) for keys in some], 5) / len(some)  # noqa: B023
        used = quickest_us(
            lambda: [tree.unlock(tree.lock(tree.match(keys, len(keys)))) for keys in some],  # noqa: B023
            1,
        ) / len(some)
        count = tree.evictable_size() // 2
        began = time.process_time()
        for _ in range(count):
            tree.evict(1)
        evicted = (time.process_time() - began) * 1e6 / count
        blocks = tree.evictable_size() + count
        print(
            f"{nodes:7,} nodes, {blocks:9,} blocks: request put in {built_us:6.2f} us, "
            f"match {found:5.2f}, with lock and unlock {used:5.2f}, eviction per block {evicted:5.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
