"""Profiles of models whose answers come in blocks."""

from __future__ import annotations

from engine.diffusion import settings
from engine.profile import diffusion_run

mask_token = settings.mask_token
bench, count_rounds = diffusion_run.bench, diffusion_run.count_rounds
