"""Every model, number format, GPU, engine and TP degree that can be priced, against the relations of
`tests/latency/price_order.py`: `python tests/soak/price_orders.py [--share 0.1]`, a part of `make soak`.

It takes some hours; a share of it is drawn by `--seed`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parents[1] / "latency"))

from price_order import GPUS, MODELS, cases, prices, violations


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="share of the models and GPUs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    pairs = [(model, gpu) for model in MODELS for gpu in GPUS]
    drawn = Random(options.seed).sample(pairs, max(round(options.share * len(pairs)), 1))
    priced = broken = 0
    for model, gpu in drawn:
        for case in cases([model], [gpu]):
            priced += prices(case) is not None
            for found in violations(case):
                broken += 1
                print(f"{' '.join(map(str, case))}: {found.relation}: {found.ratio}", flush=True)
    print(f"{priced:,} combinations of {len(drawn):,} models and GPUs, {broken:,} relations broken")
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
