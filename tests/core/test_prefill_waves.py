"""Steps of a group of ranks that may compute prompts: those whose number in the wave the interval divides."""

from __future__ import annotations

from blis_py.core.config import SchedulerConfig
from blis_py.core.prefill_cadence import PrefillCadence
from blis_py.core.rank_schedulers import scheduler_of
from blis_py.core.request import Request
from blis_py.core.step import Step


def test_steps_count_from_the_beginning_of_the_wave_and_dummies_among_them() -> None:
    cadence = PrefillCadence(4)
    cadence.begin_wave(0)
    assert [cadence.opens_tick(tick) for tick in (0, 1, 4, 5)] == [0, 4, 4, 8]
    cadence.count_dummy()
    assert [cadence.opens_tick(tick) for tick in (0, 1, 3, 4)] == [3, 3, 3, 7]


def test_a_dummy_of_all_ranks_beside_a_step_in_flight_counts_once() -> None:
    """A request whose last step is in flight leaves nothing to compute: vLLM's ranks run a dummy, the second
    step of the wave. A prompt that comes beside decodes two steps later waits for the fifth."""
    config = SchedulerConfig(
        num_kv_blocks=200,
        max_model_len=400,
        ranks=2,
        rank_choice="round-robin",
        prefill_schedule_interval=4,
        async_scheduling=True,
        blocks_await_outcome=True,
    )
    group = scheduler_of(config)
    steps: list[Step | None] = []

    def add(name: str) -> None:
        assert group.add(Request(name, 0, 3, 1 if name == "short" else 30)) is None

    def run() -> list[str]:
        steps.append(group.schedule(len(steps)))
        planned, before = steps[-1], steps[-2] if len(steps) > 1 else None
        if planned is not None:
            group.advance(planned)
        if before is not None:
            group.resolve(before)
        return [] if planned is None else sorted(request.id for request, _ in planned.prefills)

    add("short")
    assert run() == ["short"]
    assert group.schedule(1) is None
    assert run() == [], "the same dummy"
    add("long")
    add("filler")
    assert run() == ["filler", "long"]
    add("behind")  # where "long" decodes
    assert [run(), run()] == [[], ["behind"]]
