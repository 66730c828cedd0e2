"""Every model, number format, GPU, engine and TP degree that can be priced, against the relations of
`tests/latency/price_order.py`: `python tests/soak/price_orders.py [--share 0.1]`, a part of `make soak`.

It takes an hour or two of one core, in random order, and goes on where it was stopped: what each model under
an engine at a TP degree came to is kept in `build/price_orders` for as long as the same code makes prices.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import lru_cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parents[1] / "latency"))

from price_order import GPUS, MODELS, TP, cases, prices, violations

from blis_py.latency.operators import ENGINES
from blis_py.latency.served import Served

ROOT = Path(__file__).parents[2]
_PRICING = "blis_py/latency", "blis_py/models", "blis_py/hardware", "profiles", "tests/latency/price_order.py"


Served.model = lru_cache(maxsize=1024)(Served.model)  # type: ignore[method-assign]
"""Each price is compared with many others."""


def group(model: str, engine: str, tp: int) -> dict[str, Any]:
    """What all cases of a model under an engine at a TP degree come to."""
    priced, broken = 0, []
    for case in cases([model], GPUS, [engine], [tp]):
        priced += prices(case) is not None
        for found in violations(case):
            broken.append(f"{' '.join(map(str, case))}: {found.relation}: {found.ratio}")
    return {"at": [model, engine, tp], "priced": priced, "broken": broken}


def code_hash() -> str:
    """A hash of what prices are made by."""
    hashed = sha256()
    for name in _PRICING:
        found = [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*"))
        for path in found:
            if path.suffix in (".py", ".yaml", ".json", ".npz"):
                hashed.update(path.read_bytes())
    return hashed.hexdigest()[:16]


def read(kept: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    entries = [json.loads(line) for line in lines]
    return {tuple(entry["at"]): entry for entry in entries}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of the models, engines and TP degrees"
    )
    parser.add_argument("--seed", type=int, default=0, help="of those that are drawn")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="(default: all)")
    options = parser.parse_args()
    groups = list(product(options.models, ENGINES, TP))
    drawn = Random(options.seed).sample(groups, max(round(options.share * len(groups)), 1))
    kept = ROOT / "build" / "price_orders" / f"{code_hash()}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    known = read(kept)
    for at in drawn:
        if at not in known:
            known[at] = group(*at)
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[at]) + "\n")
        print(*known[at]["broken"], f"{at}: {known[at]['priced']} priced", sep="\n", flush=True)
    priced = sum(known[at]["priced"] for at in drawn)
    broken = sum(len(known[at]["broken"]) for at in drawn)
    print(f"{priced:,} combinations, of {len(drawn)} of {len(groups)} groups: {broken:,} relations broken")
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
