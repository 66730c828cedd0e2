"""Steps without prompts between steps with prompts: `prefill_schedule_interval` of vLLM.

`schedule` of `vllm/v1/core/sched/scheduler.py`, `_should_throttle_prefills` of `vllm/v1/engine/core.py`.
"""

from __future__ import annotations


class PrefillCadence:
    """Which steps of an instance may compute prompts.

    Args:
        every_steps: every so-many-th step may.
    """

    def __init__(self, every_steps: int) -> None:
        self.crowded = False
        """Whether the last step that could admit requests left some in the queue, others than those with a
        grammar that have not run: then none is held back."""
        self._every_steps = every_steps
        self._last_tick = -every_steps
        self._has_waves = False
        self._wave_tick = 0

    def begin_wave(self, tick: int) -> None:
        """Count steps from this one on, as ranks that step together do, whichever of them has prompts."""
        self._has_waves, self._wave_tick = True, tick

    def count_dummy(self) -> None:
        """Count a step in which no rank had work."""
        self._wave_tick -= 1

    def computed_prompts(self, tick: int) -> None:
        """Note a step that computes prompts."""
        self._last_tick = tick

    def opens_tick(self, tick: int) -> int:
        """The first step from `tick` on that may compute prompts beside decodes."""
        if self.crowded:
            return tick
        if self._has_waves:
            return tick + (self._wave_tick - tick) % self._every_steps
        return max(self._last_tick + self._every_steps, tick)
