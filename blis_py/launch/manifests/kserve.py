"""Services of KServe: InferenceService with its runtime, and LLMInferenceService with its configurations."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from blis_py.launch.manifests.containers import PodContainer, container_of, count, mapping, sequence
from blis_py.launch.manifests.kubernetes import servers_of_container
from blis_py.launch.scripts import LaunchedServers, ScriptContext

SERVICES = ("InferenceService", "LLMInferenceService")
RUNTIMES = ("ServingRuntime", "ClusterServingRuntime", "LLMInferenceServiceConfig")
_MOUNTED = "/mnt/models"
"""Folder of the model in a container, by the storage initializer."""
_ADDITIONAL = "VLLM_ADDITIONAL_ARGS"
_OWN_FLAGS = {"--model_name": "--served-model-name", "--model_id": "--model"}
"""Flags of KServe's own server that vLLM has under another name."""
_DROPPED = ("--model_dir", "--backend")
_WIDTHS = {
    "tensor": ("--tensor-parallel-size", "-tp"),
    "data": ("--data-parallel-size", "-dp"),
    "pipeline": ("--pipeline-parallel-size", "-pp"),
}
Documents = Sequence[Mapping[str, Any]]


def servers_of_service(
    data: Mapping[str, Any], documents: Documents, context: ScriptContext
) -> LaunchedServers:
    """The servers of a service.

    Args:
        documents: all of the file, runtimes and configurations among them.
    """
    name = str(mapping(data.get("metadata")).get("name", data.get("kind")))
    own = replace(context, name=f"{context.name}: {name}")
    if data.get("kind") == "InferenceService":
        return _of_predictor(mapping(mapping(data.get("spec")).get("predictor")), documents, own)
    return _of_llm(mapping(data.get("spec")), documents, own)


def _of_predictor(
    predictor: Mapping[str, Any], documents: Documents, context: ScriptContext
) -> LaunchedServers:
    model, worker = mapping(predictor.get("model")), mapping(predictor.get("workerSpec"))
    form = str(mapping(model.get("modelFormat")).get("name", "")).lower()
    runtime = _runtime(str(model.get("runtime", "")), documents)
    containers = sequence(predictor.get("containers")) or [model]
    if not runtime and not predictor.get("containers") and form not in ("huggingface", "vllm"):
        named = model.get("runtime") or form
        note = f"{context.name}: its runtime {named} is not in the file: put its ServingRuntime there"
        return LaunchedServers(notes=[note] if named else [])
    for each in sequence(runtime.get("containers")):
        own, base = container_of(mapping(containers[0])), container_of(mapping(each))
        gpus, image = own.gpus or base.gpus, own.image or base.image
        words, variables = (*base.args, *own.args), {**base.environment, **own.environment}
        container = PodContainer(image, base.command, words, variables, gpus)
        break
    else:
        container = container_of(mapping(containers[0]))
    parallelism = {side: worker.get(f"{side}ParallelSize") for side in ("tensor", "pipeline")}
    started = _started(container, _uri(model.get("storageUri")), parallelism)
    return servers_of_container(started, predictor, count(predictor.get("minReplicas")), context)


def _runtime(name: str, documents: Documents) -> Mapping[str, Any]:
    """The specification of a runtime of the file; empty if it is not there."""
    found = [each for each in documents if each.get("kind") in RUNTIMES[:2]]
    named = [each for each in found if mapping(each.get("metadata")).get("name") == name]
    chosen = named or ([] if name else found)
    return mapping(chosen[0].get("spec")) if chosen else {}


def _of_llm(spec: Mapping[str, Any], documents: Documents, context: ScriptContext) -> LaunchedServers:
    found = LaunchedServers()
    for each in sequence(spec.get("baseRefs")):
        name = mapping(each).get("name")
        base = _named(name, documents)
        if base is None:
            found.notes.append(
                f"{context.name}: baseRefs {name} is not in the file: nothing of it is counted"
            )
    bases = [_named(mapping(each).get("name"), documents) or {} for each in sequence(spec.get("baseRefs"))]
    whole: Mapping[str, Any] = {}
    for each in (*bases, spec):
        whole = _merged(whole, each)
    model = mapping(whole.get("model"))
    name = _uri(model.get("uri")) or str(model.get("name", ""))
    sides = {"decode" if whole.get("prefill") else "": whole, "prefill": mapping(whole.get("prefill"))}
    for role, side in sides.items():
        template = mapping(side.get("template"))
        for each in sequence(template.get("containers"))[:1]:
            started = _started(container_of(mapping(each)), name, mapping(side.get("parallelism")))
            servers = servers_of_container(started, template, count(side.get("replicas")), context)
            for server in servers.servers:
                server.role = role
            found.add(servers)
    return found


def _named(name: Any, documents: Documents) -> Mapping[str, Any] | None:
    """The specification of a configuration of the file."""
    for each in documents:
        if each.get("kind") == RUNTIMES[2] and mapping(each.get("metadata")).get("name") == name:
            return mapping(each.get("spec"))
    return None


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the second one first; of lists of containers each with the other's."""
    found = dict(base)
    for key, value in over.items():
        old = found.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            found[key] = _merged(old, value)
        elif key == "containers" and isinstance(old, list) and isinstance(value, list) and old and value:
            found[key] = [_merged(mapping(old[0]), mapping(value[0])), *value[1:]]
        else:
            found[key] = value
    return found


def _uri(uri: Any) -> str:
    """The model of `hf://organisation/model:hash`; empty for another place."""
    scheme, _, path = str(uri or "").partition("://")
    return path.partition(":")[0] if scheme == "hf" else ""


def _started(container: PodContainer, model: str, parallelism: Mapping[str, Any]) -> PodContainer:
    """The container with the words that its operator starts it with."""
    environment = dict(container.environment)
    words = [*container.args, *shlex.split(environment.pop(_ADDITIONAL, ""))]
    words = [_renamed(each) for each in words if each.partition("=")[0] not in _DROPPED]
    for side, flags in _WIDTHS.items():
        width = count(parallelism.get(side))
        if width > 1 and not any(each.partition("=")[0] in flags for each in words):
            words += [flags[0], str(width)]
    if parallelism.get("expert") is True and "--enable-expert-parallel" not in words:
        words.append("--enable-expert-parallel")
    command = list(container.command)
    is_vllm = "sglang" not in container.image and "tensorrt" not in container.image
    if not command and is_vllm:
        command = ["vllm", "serve", *([model] if model and "--model" not in _names(words) else [])]
    swapped = [each.replace(_MOUNTED, model) if model else each for each in (*command, *words)]
    return replace(container, command=(), args=tuple(swapped), environment=environment)


def _names(words: Sequence[str]) -> list[str]:
    return [each.partition("=")[0] for each in words]


def _renamed(word: str) -> str:
    name, equals, text = word.partition("=")
    return f"{_OWN_FLAGS.get(name, name)}{equals}{text}"
