"""The suite as other processors would run it: `python tests/soak/processors.py [--only NAME] [PATH ...]`.

SIMD of NumPy and torch, kernels of OpenBLAS and the C library's exponentials and logarithms change the last
digits of sums, regressions and random draws. No test depends on them: each environment runs the same tests
in both parts of `make test`, and all must pass.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

ENVIRONMENTS = {
    "numpy-without-avx512": {
        "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"
    },
    "numpy-without-avx2": {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"},
    "openblas-nehalem": {"OPENBLAS_CORETYPE": "Nehalem"},
    "openblas-haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "glibc-without-fma": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA"},
    "torch-without-avx": {
        "ATEN_CPU_CAPABILITY": "default",
        "DNNL_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}
"""Variables by name. Features that a processor lacks are skipped by NumPy with a warning."""
PARTS = ("native", "interpreted")


def run(environment: dict[str, str], paths: list[str]) -> bool:
    """Run both parts of the suite; whether all tests passed."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    codes = [
        subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal", "--part", part, *paths],
            env=variables,
            check=False,
        ).returncode
        for part in PARTS
    ]
    return all(code in (0, 5) for code in codes)  # 5: none of the paths is in this part


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=ENVIRONMENTS, help="one of the environments")
    parser.add_argument("paths", nargs="*", default=["tests"], help="tests to run; all by default")
    given = parser.parse_args()
    failed = []
    for name, environment in ENVIRONMENTS.items():
        if given.only in (None, name):
            print(f"== {name}: {environment}", flush=True)
            if not run(environment, given.paths):
                failed.append(name)
    print(f"failed under: {', '.join(failed)}" if failed else "passed in every environment")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
