"""Kind of a manifest by its keys, and the servers in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from blis_py.errors import InputError
from blis_py.files.yaml_files import parse_yaml
from blis_py.launch.gpu_labels import gpu_of
from blis_py.launch.manifests.compose import servers_of_compose
from blis_py.launch.manifests.dynamo import servers_of_graph
from blis_py.launch.manifests.kserve import SERVICES, servers_of_service
from blis_py.launch.manifests.kubernetes import servers_of_workload
from blis_py.launch.manifests.llmd import servers_of_values
from blis_py.launch.option_servers import is_pair, servers_of_pair
from blis_py.launch.scripts import LaunchedServers, ScriptContext
from blis_py.launch.slurm_jobs import chosen, gpu_of_job, is_job, servers_of_job, variants_of_job

_GRAPHS = ("DynamoGraphDeployment", "DynamoComponentDeployment")


def servers_of_manifest(text: str, context: ScriptContext) -> LaunchedServers:
    """The servers that the documents of a manifest start.

    Raises:
        InputError: it is not YAML, a template, or of an unknown kind.
    """
    documents = list(_documents(text, context))
    texts = {name: each for data in documents for name, each in _config_maps(data)}

    def file(path: str) -> str | None:
        return texts.get(path.rpartition("/")[2]) or context.file(path)

    found = LaunchedServers()
    known = False
    for data in documents:
        servers = _servers(data, documents, replace(context, file=file))
        if servers is not None:
            known = True
            found.add(servers)
    if not known:
        fix = "give a manifest of Kubernetes or KServe, a compose file, values of llm-d, a Dynamo graph, "
        fix += "a job of srt-slurm, or the file of trtllm-serve disaggregated"
        if any("engine" in data or "workload" in data for data in documents):
            fix = "give a configuration of blis with --config"
        raise InputError("is of no kind that starts servers", file=context.name, fix=fix)
    return found


def _documents(text: str, context: ScriptContext) -> Iterator[dict[str, Any]]:
    for part in re.split(r"(?m)^---(?:[ \t].*)?$", text):
        try:
            data = parse_yaml(part)
        except InputError as error:
            if "{{" in part:
                fix = "write it out first: helm template"
                raise InputError("is a template", file=context.name, fix=fix) from None
            raise InputError(error.problem, file=context.name, key=error.key, fix=error.fix) from None
        if isinstance(data, Mapping) and data.get("kind") == "List":
            yield from (dict(each) for each in data.get("items") or () if isinstance(each, Mapping))
        elif isinstance(data, Mapping):
            yield dict(data)


def _config_maps(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The files of a ConfigMap, by name."""
    content = data.get("data")
    if data.get("kind") == "ConfigMap" and isinstance(content, Mapping):
        for name, text in content.items():
            yield str(name), str(text)


def _servers(
    data: Mapping[str, Any], documents: Sequence[Mapping[str, Any]], context: ScriptContext
) -> LaunchedServers | None:
    """The servers of one document; None if it is of a kind that starts none."""
    if data.get("kind") in SERVICES:
        return servers_of_service(data, documents, context)
    if data.get("kind") in _GRAPHS:
        return servers_of_graph(data, context)
    if "kind" in data:
        return servers_of_workload(data, context)
    if isinstance(data.get("services"), Mapping):
        return servers_of_compose(data, context)
    if is_pair(data):
        return LaunchedServers(servers_of_pair(data, context.name))
    if is_job(data):
        return _of_job(data, context)
    if "modelArtifacts" in data or isinstance(data.get("decode"), Mapping):
        return servers_of_values(data, context)
    return None


def _of_job(data: Mapping[str, Any], context: ScriptContext) -> LaunchedServers:
    if context.variant:
        data = chosen(data, context.variant, context.name)
    found = LaunchedServers(servers_of_job(data, context.name))
    variants, named = variants_of_job(data), gpu_of_job(data)
    gpu = gpu_of(named) if named else None
    for server in found.servers:
        server.gpu = gpu or ""
    if named and gpu is None:
        found.notes.append(f"{context.name}: its GPU is {named}, which is not bundled; give --gpu")
    if variants:
        listed = ", ".join(variants)
        found.notes.append(
            f"{context.name}: its base is read, and none of its variants: {listed}; "
            f"--launch {context.name}:{variants[0]} reads one"
        )
    return found
