"""Settings of a run implied by a fitted profile: model, device, KV blocks."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.files.profiles import squeeze
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency.fitted_profile import FittedProfile, read_profile
from blis_py.latency.fitted_shape import datasheet_of, model_name, require_same, shape_of
from blis_py.models.model_shape import ModelShape, config_name, load_model

_DEFAULT_GPU = next(f.default for f in fields(RunConfig) if f.name == "gpu")


@dataclass(frozen=True)
class MeasuredProfile:
    """A run whose step times come from a fitted profile."""

    config: RunConfig
    """Configuration with model and device as in the profile."""
    profile: FittedProfile
    shape: ModelShape
    gpu: GpuSpec | None
    """None if the device has no datasheet."""

    def capacity(self) -> tuple[str, int]:
        """A one-line description of the KV capacity without a datasheet, and the blocks of one instance.

        Raises:
            InputError: neither the settings nor the profile give it.
        """
        settings, meta = self.config.scheduler, self.profile.meta
        given, size = settings.num_kv_blocks, settings.block_size
        blocks, source = given, "as given"
        if blocks is None and meta.get("num_kv_blocks"):
            blocks = int(meta["num_kv_blocks"]) * int(meta.get("block_size") or size) // size
            source = "of the engine that was measured"
        if not blocks:
            problem = f"{self.config.gpu} has no datasheet, and its profile does not tell the KV blocks"
            raise InputError(problem, file=self.profile.file, key="num_kv_blocks", fix="give --num-kv-blocks")
        line = (
            f"KV capacity: {blocks:,} blocks of {size} = {blocks * size:,} tokens "
            f"({source}: {self.shape.name} on {self.config.gpu} TP{self.config.tp})"
        )
        return line, blocks


def measured_run(config: RunConfig) -> MeasuredProfile:
    """Resolve model and device of a run with a fitted profile.

    The model is the profile's if none or the same is given; likewise the device.

    Raises:
        InputError: the profile is for another model, TP degree or device.
    """
    if config.latency.profile is None:
        fix = "give the folder with --profile"
        raise InputError("needs a fitted profile", key="latency.profile", fix=fix)
    profile = read_profile(config.latency.profile)
    profile.require_tp(config.tp)
    shape = _shape(config, profile)
    device = str(profile.meta.get("device") or "an unnamed device")
    gpu = datasheet_of(profile.meta)
    open_ = config.gpu == _DEFAULT_GPU and "gpu" not in (config.given or ())
    same = config.gpu == device or (gpu is not None and _named(config.gpu) == gpu.name)
    if not same and not open_:
        fix = "drop --gpu, or give a profile measured there"
        raise InputError(
            f"was measured on {device}", file=profile.file, key="--gpu", value=config.gpu, fix=fix
        )
    settings = replace(config, model=config.model or shape.name, gpu=device)
    return MeasuredProfile(settings, profile, shape, gpu)


def _shape(config: RunConfig, profile: FittedProfile) -> ModelShape:
    own = shape_of(profile.meta, profile.file)
    names = {squeeze(str(profile.meta.get("model"))), squeeze(model_name(profile.meta))}
    if own is not None and config.model_config is None:
        if config.model is None or squeeze(config.model) in names:
            return own
    elif config.model is None and config.model_config is None:
        problem = "the profile does not describe its model"
        raise InputError(problem, file=profile.file, key="model_config", fix="give --model or --model-config")
    model = _named_model(config)
    if own is not None:
        require_same(own, model, profile.file)
    return model


def _named_model(config: RunConfig) -> ModelShape:
    """The model named in the run: bundled, a configuration file, or a checkpoint folder."""
    return load_model(config.model or config_name(str(config.model_config)), config.model_config)


def _named(gpu: str) -> str | None:
    try:
        return load_gpu(gpu).name
    except InputError:
        return None
