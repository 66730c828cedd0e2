"""Flags that a release's server takes, read from the source of its wheel.

    python -m benchmarks.engines.arguments vllm 0.33.0

Prints one flag a line, switches with a star: what `tests/launch/server_flags` has. Nothing of the engines is
executed: calls of `add_argument`, and fields of the classes that become flags.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.engines import wheels
from benchmarks.engines.config_defaults import modules
from benchmarks.engines.registry import ENGINES
from blis_py.launch.flag_table import flag_table
from blis_py.launch.flag_words import spelled

_SOURCES = {
    "vllm": ("vllm/engine/arg_utils.py", "vllm/entrypoints/common", "vllm/entrypoints/openai/cli_args.py"),
    "sglang": ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields"),
}
_RECORDS = ("BaseFrontendArgs", "FrontendArgs")
"""Classes of vLLM whose fields are flags."""
_SWITCHED = ("store_true", "store_const", "BooleanOptionalAction", "DeprecatedStoreTrueAction")
Flags = dict[str, bool]
"""Whether it takes no value, by flag."""


def server_flags(engine: str, root: Path) -> Flags:
    """The flags of a server.

    Args:
        root: folder with its package.
    """
    found: Flags = {}
    switches = _config_switches(root) if engine == "vllm" else set()
    for path in _SOURCES[engine]:
        for file in modules(root / path) if (root / path).exists() else ():
            tree = ast.parse(file.read_text(encoding="utf-8"))
            found |= _added(tree, switches)
            found |= _annotated(tree) if engine == "sglang" else _fields(tree, _RECORDS)
    return dict(sorted(found.items()))


def unlisted(engine: str, root: Path) -> list[str]:
    """Flags of a server that the table of its engine does not list."""
    table = flag_table(engine)
    names = server_flags(engine, root)
    return [name for name in names if table.meaning("flags", spelled(name, table)) is None]


def _added(tree: ast.AST, switches: set[str]) -> Flags:
    """Flags of the calls of `add_argument`."""
    found: Flags = {}
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"):
            continue
        names = [each.value for each in call.args if isinstance(each, ast.Constant)]
        action = next((each.value for each in call.keywords if each.arg == "action"), None)
        switch = action is not None and any(each in ast.unparse(action) for each in _SWITCHED)
        switch |= any(name.strip("-").replace("-", "_") in switches for name in map(str, names))
        found |= {str(name): switch for name in names if str(name).startswith("-")}
    return found


def _config_switches(root: Path) -> set[str]:
    """Fields of vLLM's settings that are true or false."""
    fields = (
        each
        for file in modules(root / "vllm" / "config")
        for each in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(each, ast.AnnAssign) and ast.unparse(each.annotation) in ("bool", "bool | None")
    )
    return {each.target.id for each in fields if isinstance(each.target, ast.Name)}


def _fields(tree: ast.Module, classes: Sequence[str]) -> Flags:
    found: Flags = {}
    for of in ast.walk(tree):
        if isinstance(of, ast.ClassDef) and of.name in classes:
            for each in of.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    found[_flag(each.target.id)] = ast.unparse(each.annotation) == "bool"
    return found


def _annotated(tree: ast.Module) -> Flags:
    """Flags of fields `name: A[type, …]`, of which `Arg` may say others."""
    found: Flags = {}
    for each in ast.walk(tree):
        if not (isinstance(each, ast.AnnAssign) and isinstance(each.annotation, ast.Subscript)):
            continue
        if ast.unparse(each.annotation.value) != "A" or not isinstance(each.annotation.slice, ast.Tuple):
            continue
        kind, *more = each.annotation.slice.elts
        said = {key.arg: key.value for call in more if isinstance(call, ast.Call) for key in call.keywords}
        if "no_cli" in said or not isinstance(each.target, ast.Name):
            continue
        names = [_flag(each.target.id)]
        if "cli_name" in said:
            names = [str(ast.literal_eval(said["cli_name"]))]
        names += ast.literal_eval(said["aliases"]) if "aliases" in said else []
        action = ast.unparse(said["action"]) if "action" in said else ""
        plain = ast.unparse(kind) in ("bool", "Optional[bool]") and "type_parser" not in said
        found |= dict.fromkeys(names, plain or any(word in action for word in _SWITCHED))
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def lines(flags: Flags) -> Iterator[str]:
    """The flags, switches with a star."""
    return (f"{name} *" if switch else name for name, switch in flags.items())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=_SOURCES)
    parser.add_argument("version")
    parser.add_argument("--unlisted", action="store_true", help="Only those that --launch does not list.")
    options = parser.parse_args(arguments)
    engine = ENGINES[options.engine]
    wheel = wheels.unpacked(engine.package, options.version, engine.kept)
    if wheel is None:
        return 1
    flags = server_flags(options.engine, wheel.root)
    if options.unlisted:
        left = unlisted(options.engine, wheel.root)
        flags = {name: switch for name, switch in flags.items() if name in left}
    print("\n".join(lines(flags)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
