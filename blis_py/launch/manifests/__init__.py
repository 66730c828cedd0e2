"""Manifests: Kubernetes, compose, Helm values of llm-d, Dynamo graphs."""

from blis_py.launch.manifests.documents import servers_of_manifest

__all__ = ["servers_of_manifest"]
