"""Scorers, detectors and admission beside their published formulas, on recorded decisions and random ones."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_routing import Known, NaiveWeighted, prompt_blocks
from peer_runs import Candidate, PeerRun, peer_run
from real_parts import RealAdmission, RealWeighted, Shown, saturation

DEFAULT = "precise-prefix-cache:2,queue-depth:1,kv-utilization:1"
SCORED = {
    "01_weighted_default_prefix_csd50": 4,
    "02_scorers_prefix_affinity_mix": 3,
    "03_scorers_lru_vllmdp_running_mix": 4,
    "04_scorers_load_kv_timeouts": 3,
}
SCORERS = ("queue-depth", "running-requests", "vllm-dp", "precise-prefix-cache", "kv-utilization")
SCORERS += ("load-balance", "load-aware", "active-requests", "prefix-affinity", "no-hit-lru")


def known(candidates: list[Candidate]) -> list[Known]:
    return [Known(*one[:5]) for one in candidates]


def profile_of(run: PeerRun) -> dict[str, float]:
    parts = run.flag("--routing-scorers", DEFAULT).split(",")
    return {name: float(weight) for name, weight in (part.split(":") for part in parts)}


def blocks_of(run: PeerRun) -> dict[str, tuple[list[object], int]]:
    """Blocks and length of each prompt."""
    found = {}
    for row in run.sent:
        name, shared = str(row["request_id"]), row.get("prefix_length", 0)
        tokens = shared + row["input_tokens"]
        found[name] = (prompt_blocks(name, row.get("prefix_group", ""), shared, tokens), tokens)
    return found  # type: ignore[return-value]


# -- recorded decisions ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCORED)
def test_recorded_scores_are_those_of_the_formulas_and_of_the_router(name: str) -> None:
    run, count = peer_run(name), SCORED[name]
    naive, real = NaiveWeighted(profile_of(run), count), RealWeighted(profile_of(run), count)
    prompts = blocks_of(run)
    for decision in run.decisions:
        (blocks, tokens), reports = prompts[decision.request], known(decision.candidates)
        recorded = [one.score for one in decision.candidates]
        assert naive.scores(blocks, reports) == pytest.approx(recorded, rel=0, abs=1e-12)
        assert real.scores(blocks, tokens, reports) == pytest.approx(recorded, rel=0, abs=1e-12)
        assert recorded[decision.target] == max(recorded)
        naive.sent(blocks, decision.target, reports)
        real.sent(decision.target)
    assert len(run.decisions) == 100


def test_recorded_targets_of_policies_by_load_are_those_of_their_rules() -> None:
    for name, extreme in (("ll", min), ("busiest", max)):
        for decision in peer_run(f"05_least_loaded_busiest_{name}").decisions:
            loads = [one.load for one in known(decision.candidates)]
            assert loads[decision.target] == extreme(loads)
            if name == "busiest":
                assert decision.target == loads.index(max(loads))


def test_recorded_saturation_by_requests_in_flight_is_that_of_the_formula_and_of_the_detector() -> None:
    for name in ("11_flow_priority_shed_shed", "12_flow_slo_deadline"):
        run = peer_run(name)
        most = int(run.flag("--max-concurrency"))
        shown = Shown(2)
        for decision in run.decisions:
            reports = known(decision.candidates)
            shown.show(reports)
            by_hand = sum(one.in_flight for one in reports) / (len(reports) * most)
            ours = saturation("concurrency", shown, max_concurrency_per_instance=most)
            assert decision.saturation == pytest.approx(by_hand, abs=1e-12)
            assert ours == pytest.approx(by_hand, abs=1e-12)


def test_a_recorded_token_bucket_admits_what_the_rule_admits() -> None:
    run = peer_run("06_token_bucket")
    capacity, rate = float(run.flag("--token-bucket-capacity")), float(run.flag("--token-bucket-refill-rate"))
    late_us = int(run.flag("--admission-latency"))
    bucket, latest_us, refused = capacity, 0, []
    for row in run.sent:
        now_us = row["arrival_time_us"] + late_us
        bucket, latest_us = min(capacity, bucket + (now_us - latest_us) * rate / 1e6), now_us
        if bucket >= row["input_tokens"]:
            bucket -= row["input_tokens"]
        else:
            refused.append(str(row["request_id"]))
    assert refused == run.refused["admission"]
    assert len(refused) == 5


# -- random ones -------------------------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn, count: int) -> list[Known]:
    queue, few = st.sampled_from([0, 0, 1, 2, 9, 127, 200]), st.integers(0, 6)
    cached = st.sampled_from([0, 0, 0, 1, 4])
    return [
        Known(draw(queue), draw(few), draw(st.floats(0, 1)), draw(few), draw(cached)) for _ in range(count)
    ]


@pytest.mark.slow
@settings(max_examples=150)
@given(
    profile=st.dictionaries(st.sampled_from(SCORERS), st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1),
    count=st.integers(1, 6),
    data=st.data(),
)
def test_scores_are_those_of_the_formulas(profile: dict[str, float], count: int, data: st.DataObject) -> None:
    naive, real = NaiveWeighted(profile, count), RealWeighted(profile, count)
    for number in range(data.draw(st.integers(1, 8))):
        tokens, reports = data.draw(st.integers(1, 120)), data.draw(views(count))
        group = data.draw(st.sampled_from(["", "a", "b"]))
        blocks = prompt_blocks(f"{number}", group, data.draw(st.integers(0, 90)), tokens)
        assert real.scores(blocks, tokens, reports) == pytest.approx(naive.scores(blocks, reports), abs=1e-12)
        target = data.draw(st.integers(0, count - 1))
        naive.sent(blocks, target, reports)
        real.sent(target)


@settings(max_examples=100)
@given(st.integers(1, 5).flatmap(views), st.floats(0.5, 20), st.floats(0.1, 1), st.integers(1, 100))
def test_saturation_is_that_of_the_formulas(
    reports: list[Known], queued: float, used: float, most: int
) -> None:
    shown = Shown(len(reports))
    shown.show(reports)
    worst = [max(one.queue / queued, one.kv / used) for one in reports]
    found = saturation("utilization", shown, queue_depth_threshold=queued, kv_cache_util_threshold=used)
    assert found == pytest.approx(sum(worst) / len(worst))
    found = saturation("concurrency", shown, max_concurrency_per_instance=most)
    assert found == pytest.approx(sum(one.in_flight for one in reports) / (len(reports) * most))


PRIORITY = {"critical": 4, "standard": 3, "": 3, "batch": -1, "sheddable": -2, "background": -3}
POLICIES = ("always-admit", "reject-all", "token-bucket", "tier-shed", "gaie-legacy")


class NaiveAdmission:
    """The rules, with budgets of tenants in front of any policy."""

    def __init__(self, policy: str, slots: int, given: dict[str, float], budgets: dict[str, float]) -> None:
        self.policy, self.slots, self.given, self.budgets = policy, slots, given, budgets
        self.bucket, self.latest_s = given["token_bucket_capacity"], 0.0
        self.under_way: list[str] = []

    def admits(self, now_s: float, prompt: int, slo_class: str, tenant: str, reports: list[Known]) -> bool:
        sheddable = PRIORITY[slo_class] < 0
        within = self.budgets.get(tenant, 1e9) * self.slots
        if sheddable and self.under_way.count(tenant) > within:
            return False
        admitted = self.by_policy(now_s, prompt, slo_class, reports)
        if admitted:
            self.under_way.append(tenant)
        return admitted

    def by_policy(self, now_s: float, prompt: int, slo_class: str, reports: list[Known]) -> bool:
        given = self.given
        if self.policy == "token-bucket":
            capacity, rate = given["token_bucket_capacity"], given["token_bucket_refill_rate"]
            self.bucket = min(capacity, self.bucket + (now_s - self.latest_s) * rate)
            self.latest_s = now_s
            if prompt > self.bucket:
                return False
            self.bucket -= prompt
        if self.policy == "tier-shed" and max(one.load for one in reports) > given["tier_shed_threshold"]:
            return PRIORITY[slo_class] >= given["tier_shed_min_priority"]
        if self.policy == "gaie-legacy" and PRIORITY[slo_class] < 0:
            limits = given["gaie_qd_threshold"], given["gaie_kv_threshold"]
            worst = [max(one.queue / limits[0], one.kv / limits[1]) for one in reports]
            return sum(worst) / len(worst) < 1
        return self.policy != "reject-all"


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from(POLICIES), st.booleans(), st.integers(1, 4))
def test_admission_is_that_of_the_rules(seed: int, policy: str, budgeted: bool, count: int) -> None:
    rng = Random(seed)
    given = {
        "token_bucket_capacity": rng.choice([50.0, 400.0]),
        "token_bucket_refill_rate": rng.choice([1.0, 64.0]),
        "tier_shed_threshold": rng.choice([0, 4, 8]),
        "tier_shed_min_priority": rng.choice([-2, 0, 3, 4]),
        "gaie_qd_threshold": rng.choice([1.0, 5.0]),
        "gaie_kv_threshold": rng.choice([0.25, 0.8]),
    }
    budgets = {"a": 0.25, "b": 0.0} if budgeted else {}
    requests = [
        (rng.randint(1, 200), rng.choice(list(PRIORITY)), rng.choice(["a", "b", "c"])) for _ in range(60)
    ]
    shown, columns = Shown(count), [list(column) for column in zip(*requests, strict=True)]
    naive = NaiveAdmission(policy, 8 * count, given, budgets)
    real = RealAdmission(policy, shown, *columns, slots=8 * count, tenant_budgets=budgets, **given)  # type: ignore[arg-type]
    now_s, there = 0.0, list[int]()
    for row, (prompt, slo_class, tenant) in enumerate(requests):
        now_s += rng.choice([0.0, 0.25, 1.5])
        reports = [Known(rng.randint(0, 8), rng.randint(0, 4), rng.randrange(9) / 8, rng.randint(0, 4), 0)
                   for _ in range(count)]  # fmt: skip
        shown.show(reports)
        admitted = naive.admits(now_s, prompt, slo_class, tenant, reports)
        assert real.admits(row, round(now_s * 1e9)) == admitted
        if admitted:
            there.append(row)
        if there and rng.random() < 0.3:
            left = there.pop(rng.randrange(len(there)))
            real.ended(left)
            naive.under_way.remove(requests[left][2])
