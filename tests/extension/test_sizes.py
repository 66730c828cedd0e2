"""The extensions here are as small as the architecture says, and use public parts alone."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import adapters
import kv_tier
import pytest
import step_feature
import test_metrics as metrics
import test_prefill_and_decode as apart
import test_settings as settings
import test_unlike_instances as unlike
import two_tokens

EXTENSIONS: dict[str, tuple[list[Any], int]] = {
    "prefill and decode pools": ([apart.HandOver, apart.FromPrefill, apart.apart], 60),
    "an instance added, one drained": ([unlike.of, unlike.added_and_drained], 40),
    "two tokens a step": ([two_tokens], 40),
    "a KV store behind the cache": ([kv_tier], 60),
    "adapters": ([adapters], 40),
}
"""By name: what a user writes, imports included where it is a module, and the lines that it may take."""

REGISTRATIONS: dict[str, tuple[Any, str]] = {
    "a step feature": (step_feature.waiting_tokens, "waiting_tokens=WAITING"),
    "a metric": (metrics.queueing_per_prompt_token, "METRICS, mine.name, mine"),
    "a setting": (None, "\nadd("),
}
"""By name: the function of the extension, if it takes one, and its registration."""


def code_lines(source: str) -> int:
    """Lines of a source but for blank lines, comments and docstrings."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    counted = {line for node in ast.walk(tree) if isinstance(node, ast.stmt) for line in _lines(node)}
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            counted -= set(_lines(node.body[0]))
    rows = source.splitlines()
    return sum(
        bool(rows[line - 1].strip()) and not rows[line - 1].strip().startswith("#") for line in counted
    )


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_takes_no_more_lines_than_it_may(name: str) -> None:
    parts, most = EXTENSIONS[name]
    assert 0 < sum(code_lines(inspect.getsource(part)) for part in parts) <= most


@pytest.mark.parametrize("name", REGISTRATIONS)
def test_a_feature_a_metric_and_a_setting_are_one_registration_each(name: str) -> None:
    function, line = REGISTRATIONS[name]
    source = settings.PLUGIN if function is None else inspect.getsource(inspect.getmodule(function))
    assert source.count(line) == 1
    assert function is None or code_lines(inspect.getsource(function)) <= 4


def test_lines_are_those_of_code() -> None:
    source = """
'''Of a module.'''
# a comment
class A:
    '''Of a class.

    Longer.
    '''

    def f(self) -> int:
        # another
        return max(
            1,
            2,
        )
"""
    assert code_lines(source) == 6


def private_parts(source: str) -> list[str]:
    """Names with an underscore that are not the extension's own."""
    imported = re.findall(r"from blis_py[\w.]*\._\w+ import|from blis_py\S* import .*\b_\w+", source)
    return imported + re.findall(r"(?<!self)\._[a-z]\w*", source)


def test_extensions_use_public_parts_alone() -> None:
    for module in (adapters, apart, kv_tier, metrics, step_feature, two_tokens, unlike):
        assert not private_parts(inspect.getsource(module)), module.__name__
    assert not private_parts(settings.PLUGIN)


def test_a_private_part_would_be_found() -> None:
    assert private_parts("simulation._parts.append(1)") == ["._parts"]
    assert private_parts("from blis_py.cluster.simulation import _run")
    assert not private_parts("self._held.append(simulation.fleet)")
