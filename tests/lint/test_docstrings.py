"""Docstrings of public functions state what callers must know; `make lint` runs this, too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from sources import modules, product

Function = ast.FunctionDef | ast.AsyncFunctionDef
Assignment = ast.Assign | ast.AnnAssign
Inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
SHAPE = re.compile(r"(?<!\w)\[[^\]]*\]|\bshape|\bscalar\b|\bSee `|\barguments are those of `")
"""A shape in brackets, or a reference to the function that has the same."""

OPENINGS = re.compile(
    "(Who|Whose|Whom|What(?!-)|How|Where|When|Why|Until|Something|So many|Nothing|It|Its|Of|"
    "Adds|Appends|Begins|Brings|Builds|Collects|Creates|Decides|Divides|Does|Executes|Finds|Forbids|Gives|Keeps|Makes|"
    r"Moves|Receives|Refuses|Returns|Runs the|Sends|Serves|Takes|Wakes|Writes)\b"
)
"""First words of a sentence about an agent; a docstring opens with a noun phrase or an imperative."""


def public(tree: ast.Module) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Public functions and methods of a module, each with its class."""
    for node in tree.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node, None
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, Function) and not method.name.startswith("_"):
                    yield method, node


def constructors(tree: ast.Module) -> Iterator[tuple[Function, ast.ClassDef]]:
    """Constructors of public classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, Function) and method.name in ("__new__", "__init__", "__post_init__"):
                    yield method, node


def name(node: ast.expr | None) -> str:
    """Last part of the name of an exception."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def raised(function: ast.AST, handled: frozenset[str] = frozenset()) -> Iterator[str]:
    """What the function itself raises and does not handle."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.Raise) and node.exc is not None and name(node.exc) not in handled:
            yield name(node.exc)
        elif isinstance(node, ast.Try):
            types = [each for handler in node.handlers for each in ast.walk(handler) if each is handler.type]
            names = {
                name(each)
                for kind in types
                for each in (kind.elts if isinstance(kind, ast.Tuple) else [kind])
            }
            for inner in node.body:
                yield from raised(ast.Module([inner], []), handled | names)
            rest = [*node.handlers, *node.orelse, *node.finalbody]
            yield from raised(ast.Module(rest, []), handled)  # type: ignore[arg-type]
        elif not isinstance(node, Inner):
            yield from raised(node, handled)


def is_command(path: str, function: Function) -> bool:
    """Whether it is a command of `blis`: its docstring is its help page, and it raises `InputError`."""
    arguments = [ast.unparse(each.annotation) for each in function.args.args if each.annotation]
    return "/cli/" in path and arguments == ["Flags"]


def without_raises(path: str, tree: ast.Module) -> list[str]:
    """Functions and constructors that raise and do not say so; for a constructor its class may."""
    found = []
    for function, owner in (*((each, None) for each, _ in public(tree)), *constructors(tree)):
        kinds = set(raised(function)) - {"NotImplementedError"}
        text = (ast.get_docstring(function) or "") + ((owner and ast.get_docstring(owner)) or "")
        stated = re.search("[Rr]aises", text) or any(kind in text for kind in kinds)
        if kinds and not stated and not is_command(path, function):
            found.append(f"{path}:{function.lineno} {function.name}: {', '.join(sorted(kinds))}")
    return found


def without_shapes(path: str, tree: ast.Module) -> list[str]:
    """Functions of tensors that give no shape, themselves or in the docstring of their class."""
    found = []
    for function, owner in public(tree):
        arguments = [*function.args.args, *function.args.kwonlyargs]
        annotations = [each.annotation for each in arguments] + [function.returns]
        if not any("Tensor" in ast.unparse(each) for each in annotations if each is not None):
            continue
        if any(name(each) in ("overload", "override") for each in function.decorator_list):
            continue
        texts = [ast.get_docstring(node) or "" for node in (function, owner) if node is not None]
        if not any(SHAPE.search(text) for text in texts):
            found.append(f"{path}:{function.lineno} {function.name}")
    return found


def openings(path: str, tree: ast.Module) -> Iterator[str]:
    """First lines of docstrings, those of attributes included, that are neither a noun phrase nor an
    imperative."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            texts = [(getattr(node, "lineno", 1), ast.get_docstring(node) or ""), *of_attributes(node.body)]
            for line, text in texts:
                first = text.partition("\n")[0]
                if OPENINGS.match(first):
                    yield f"{path}:{line}: {first}"


def of_attributes(body: Sequence[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Lines and texts of the docstrings behind assignments."""
    for assignment, node in pairwise(body):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if isinstance(assignment, Assignment):
                yield node.lineno, text


@pytest.mark.slow
def test_docstrings_open_with_a_noun_phrase_or_an_imperative() -> None:
    assert not [line for path, tree in product().items() for line in openings(path, tree)]


def test_which_openings_are_those_of_a_sentence_about_someone() -> None:
    source = '"""Who waits."""\nclass A:\n  """Waiting requests."""\n  def f(self):\n    """Refuses."""\n'
    assert list(openings("x.py", ast.parse(source))) == ["x.py:1: Who waits.", "x.py:4: Refuses."]
    source = "x: int = 1\n'What it is.'\nclass A:\n  y = 1\n  'Of it.'\n  z = 2\n  'A number.'\n"
    assert list(openings("x.py", ast.parse(source))) == ["x.py:2: What it is.", "x.py:5: Of it."]


def test_every_public_function_that_raises_documents_it() -> None:
    assert not [line for path, tree in product().items() for line in without_raises(path, tree)]


def test_every_public_function_of_tensors_gives_their_shapes() -> None:
    assert not [line for path, tree in modules("engine").items() for line in without_shapes(path, tree)]


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f():\n  raise InputError('a')", 1),
        ("def f():\n  '''Raises InputError.'''\n  raise InputError('a')", 0),
        ("def _f():\n  raise InputError('a')", 0),
        ("def f():\n  def g():\n    raise InputError('a')", 0),
        ("def f():\n  try:\n    raise E\n  except (A, E):\n    pass", 0),
        ("def f():\n  try:\n    raise E\n  except A:\n    pass", 1),
        ("def f():\n  try:\n    pass\n  except E:\n    raise B", 1),
        ("class C:\n  def f(self):\n    if self:\n      raise self.error('a')", 1),
        ("def f():\n  raise NotImplementedError", 0),
        ("class C:\n  def __init__(self):\n    raise E", 1),
        ("class C:\n  '''Raises E.'''\n  def __init__(self):\n    raise E", 0),
        ("class C:\n  '''Raises E.'''\n  def f(self):\n    raise E", 1),
    ],
)
def test_what_counts_as_raised_and_unstated(source: str, count: int) -> None:
    assert len(without_raises("x.py", ast.parse(source))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f(x: Tensor): ...", 1),
        ("def f(x: Tensor):\n  '''x is [rows, hidden].'''", 0),
        ("def f() -> torch.Tensor:\n  '''See `g`.'''", 0),
        ("class C:\n  '''[n]'''\n  def f(self) -> Tensor: ...", 0),
        ("def f(x: int): ...", 0),
    ],
)
def test_what_counts_as_a_function_of_tensors_without_shapes(source: str, count: int) -> None:
    assert len(without_shapes("x.py", ast.parse(source))) == count
