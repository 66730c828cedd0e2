"""The bundled workloads never change under the hands of those who compare with them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from blis_py.workload import generate
from blis_py.workload.spec import load_spec

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
DIGESTS = {
    "batch": "28fd630efff39dc3",
    "bursty": "f25cff09f4b6a316",
    "chat": "d779e2bba7c06e65",
    "code": "05fda4f94cf2bf23",
    "hot-prefix": "23a45a91642a1e86",
    "mixed-slo": "d5ab69d8e2266ffb",
    "multi-turn-chat": "b07e58babf529239",
    "rag-nested": "969b443c399030e1",
    "rag": "ab81ab6f6b961879",
}


def digest(name: str) -> str:
    table = generate(load_spec(WORKLOADS / f"{name}.yaml"))
    columns = (table.arrival_ns, table.prompt_tokens, table.output_tokens, table.deadline_ns, table.content)
    named = (table.client, table.slo_class, table.tenant, table.prefix_group)
    texts = [*(labels.to_list() for labels in named), list(table.contents)]
    whole = b"".join(np.ascontiguousarray(column, dtype="<i8").tobytes() for column in columns)
    return sha256(whole + repr(texts).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_a_bundled_workload_is_the_same_to_the_byte(name: str) -> None:
    assert digest(name) == DIGESTS[name]
