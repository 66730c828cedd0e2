"""Settings of the admission policies; each is registered here, once.

Annotations are evaluated here and no later, because the configuration reads them.
"""

from blis_py.core.flag_texts import pairs
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings:
    """Parameters of the admission policies."""

    token_bucket_capacity: float = setting(
        10_000.0,
        above=0,
        most=1e15,
        flag="--token-bucket-capacity",
        help="With `token-bucket`: prompt tokens that may come at once.",
    )
    token_bucket_refill_rate: float = setting(
        1_000.0,
        above=0,
        most=1e15,
        flag="--token-bucket-refill-rate",
        help="With `token-bucket`: prompt tokens per second.",
    )
    tier_shed_threshold: float = setting(
        0.0,
        least=0,
        most=1e15,
        flag="--tier-shed-threshold",
        help="With tier-shed: load of an instance above which classes are shed.",
    )
    """With `tier-shed`: load of the most loaded instance (waiting, running and in flight) above which it
    sheds."""
    tier_shed_min_priority: int = setting(
        0,
        least=-101,
        most=101,
        flag="--tier-shed-min-priority",
        help="With tier-shed: the least priority that is let in then.",
    )
    """With `tier-shed`: SLO classes of a smaller priority are shed."""
    gaie_qd_threshold: float = setting(
        5.0,
        above=0,
        most=1e15,
        flag="--gaie-qd-threshold",
        help="With `gaie-legacy`: waiting requests of a saturated instance.",
    )
    gaie_kv_threshold: float = setting(
        0.8,
        above=0,
        most=1,
        flag="--gaie-kv-threshold",
        help="With gaie-legacy: KV use of a saturated instance.",
    )
    """With `gaie-legacy`: share of its KV blocks in use."""
    tenant_budgets: dict[str, float] = setting(
        factory=dict,
        flag="--tenant-budgets",
        read=pairs("each tenant once with its share", "acme=0.25,beta=0.1"),
        help="Shares of all request slots beyond which a tenant's sheddable requests are rejected.",
        metavar="NAME=S,…",
    )
    """By tenant, the share of all instances' `max_num_seqs` above which its sheddable requests are rejected,
    whatever the policy; a tenant without has no limit."""
