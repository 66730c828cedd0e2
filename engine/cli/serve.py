"""`blis engine serve`: the engine under the OpenAI API."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.verbs.serve import SERVER, require_extra, server_settings
from engine.cli import kinds
from engine.cli.options import ENGINE, STEP_LOG

SERVED = (
    Flag("--served-model-name", list[str], "", "Name for clients (repeatable).", metavar="NAME"),
    Flag("--chat-template", str, "", "Chat template (Jinja). Default the checkpoint's.", metavar="FILE"),
    Flag("--no-generation-config", bool, "", "Ignore the checkpoint's sampling defaults."),
    STEP_LOG,
)
GROUPS = (("Server", SERVER), ("Model as served", SERVED), *ENGINE, *kinds.GROUPS)


def serve(flags: Flags) -> None:
    """Serve a model under the OpenAI API: streaming, chat, structured outputs, metrics.

    A name like org/model is looked up in the local Hugging Face cache; nothing is downloaded.
    """
    require_extra()
    from blis_py.serve.server import Service, run
    from engine.cli.serving.backend import EngineBackend, set_threads
    from engine.cli.serving.checkpoint import CheckpointWords, checkpoint_words, local_folder

    settings = replace(server_settings(flags), key_opens_admin=False)
    flags = dict(flags)
    model = flags.get("--model", "")
    if model:
        flags["--model"] = local_folder(model)
    config, kind = kinds.configured(flags)
    set_threads(config.device)
    folder = Path(config.tokenizer or config.model)
    words = checkpoint_words(folder if folder.is_dir() else folder.parent, flags.get("--chat-template"))
    if "--no-generation-config" in flags:
        words = CheckpointWords(words.template, words.special)
    own = Path(model).name if Path(model).exists() else model
    names = tuple(flags.get("--served-model-name", ())) or (own,)
    backend = EngineBackend(
        lambda: kinds.build_as(config, kind), names, words, keep_log=STEP_LOG.name in flags
    )
    run([Service({"": backend}, settings)])
    if STEP_LOG.name in flags and backend.engine is not None and backend.engine.recorder.steps:
        backend.engine.recorder.write(flags[STEP_LOG.name])
