"""The examples in the guides: found, run, and their output compared (or, run as a script, refreshed).

    .venv/bin/python tests/docs/examples.py [FILE...]    # rewrites the outputs shown in docs and examples

What runs, by the info string of a fenced block:

- `console`: each line after `$ ` is a command, the lines below it what it prints; a line `...` stands for
  lines left out. `console exit=2`: the last command fails, and what is shown is its complaint.
- `python`: runs in one namespace per guide; a `text` block right below it is what it prints.
- `<language> <file name>`: is written to that file.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from blis_py.cli import main

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
QUESTIONS = sorted((ROOT / "examples").glob("*/README.md"))
_DATA = ROOT.parent / "shared" / "data"
GIVEN = {
    "AzureLLMInferenceTrace_conv.csv": _DATA / "azure_2023" / "azure2023_conv.csv",
    "steps_2runs.csv.gz": _DATA / "vllm_steps_h100" / "steps_2runs.csv.gz",
    "RTX4090__Llama-3.1-8B__tp1": _DATA / "vllm_runs" / "kernel_profiles" / "RTX4090__Llama-3.1-8B__tp1",
    "tiny-profile": ROOT / "docs" / "recorded" / "tiny-profile",
    "overlap": ROOT / "docs" / "recorded" / "overlap",
    "tiny-run": ROOT / "docs" / "recorded" / "tiny-run",
}
"""What a guide has the reader download or measure, and where it lies; without it the example is skipped."""

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_OMITTED = "..."
_ANCHOR = 16
"""So many characters tell the beginning of a piece in the middle of an output."""
_TABLES = (
    *("run", "replay", "plan", "sweep", "explain", "compare"),
    *("calibrate", "parity", "profile"),
)
"""Commands that print a table on a terminal."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a guide."""

    info: str
    body: str
    start: int
    """Where its body begins in the text."""
    line: int

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def rest(self) -> str:
        return self.info.partition(" ")[2]


@dataclass
class Example:
    """Something that runs, and what the guide says it prints (None: it does not say)."""

    block: Block
    code: str
    shown: str | None
    where: tuple[int, int] | None = None
    """The part of the guide that shows the output."""
    exit_code: int = 0


@dataclass
class Runner:
    """Runs the examples of one guide, in order, in a folder of its own."""

    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "guide"})

    @classmethod
    def beside(cls, guide: Path, folder: Path) -> Runner:
        """One that finds the files beside the guide of a folder of `examples`."""
        if guide.resolve().parent.parent == ROOT / "examples":
            shutil.copytree(guide.parent, folder, dirs_exist_ok=True)
        return cls(folder)

    def run(self, example: Example) -> tuple[int, str] | None:
        """Exit code and output: of a command stdout, or stderr where it fails. None: a file is missing."""
        for name, copy in GIVEN.items():
            if name in example.code and not (self.folder / name).exists():
                if not copy.exists():
                    return None
                (self.folder / name).symlink_to(copy)
        with chdir(self.folder), _cache(self.folder / ".cache"):
            if example.block.language == "python":
                return self._python(example.code)
            if example.block.language == "console":
                code, printed = _command(example.code)
                return code, printed.replace(f"{Path.cwd()}{os.sep}", "")
            file = self.folder / example.block.rest
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(example.code, encoding="utf-8")
            return 0, ""

    def _python(self, code: str) -> tuple[int, str]:
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(code, "guide", "exec"), self.names)
        return 0, out.getvalue()


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """None of these runs has been made before."""
    before = os.environ.get("BLIS_CACHE")
    os.environ["BLIS_CACHE"] = str(folder)
    try:
        yield
    finally:
        del os.environ["BLIS_CACHE"]
        if before is not None:
            os.environ["BLIS_CACHE"] = before


def examples(text: str) -> Iterator[Example]:
    """Everything in a guide that runs."""
    blocks = [_block(text, found) for found in _FENCE.finditer(text)]
    for block, following in zip_longest(blocks, blocks[1:]):
        if block.language == "console":
            yield from _commands(block)
        elif block.language == "python":
            end = block.start + len(block.body)
            if following and text[end : following.start].split() == ["```", "```text"]:
                where = following.start, following.start + len(following.body)
                yield Example(block, block.body, following.body, where)
            else:
                yield Example(block, block.body, None)
        elif block.rest:
            yield Example(block, block.body, None)


def _block(text: str, found: re.Match[str]) -> Block:
    line = text.count("\n", 0, found.start()) + 1
    return Block(found["info"].strip(), found["body"], found.start("body"), line)


def _commands(block: Block) -> Iterator[Example]:
    exit_code = int(block.rest.removeprefix("exit=") or 0) if block.rest else 0
    pieces = re.split(r"^\$ ", block.body, flags=re.MULTILINE)
    assert not pieces[0], f"line {block.line}: a console block starts with `$ `"
    at = block.start
    for index, piece in enumerate(pieces[1:]):
        found = re.match(r"(?:[^\n]*\\\n)*[^\n]*\n", piece)
        assert found is not None
        at += 2
        shown = (at + found.end(), at + len(piece))
        at += len(piece)
        last = index == len(pieces) - 2
        output = piece[found.end() :].strip("\n") and piece[found.end() :]
        yield Example(block, found.group(), output or None, shown, exit_code if last else 0)


def _command(text: str) -> tuple[int, str]:
    text = text.replace("\\\n", " ").strip()
    if text == "make run":
        text = _make_run()
    words = shlex.split(text)
    assert words[0] == "blis", f"only blis commands run here, not {words[0]}"
    if words[-1] == "2>&1" or words[-2:] == ["2>&1", ">/dev/null"]:
        return _merged(words[1 : words.index("2>&1")], with_stdout=words[-1] == "2>&1")
    if any(re.fullmatch(r"\||\d*>(&\d)?|>/dev/null", word) for word in words):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "MPLBACKEND": "Agg"}
        done = subprocess.run(["bash", "-o", "pipefail", "-c", text], capture_output=True, text=True, env=env)
        return done.returncode, done.stdout if done.returncode == 0 else done.stderr
    if words[1] in _TABLES and "--format" not in words and "--help" not in words:
        words += ["--format", "table"]  # as on a terminal
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words[1:])
    return code, out.getvalue() if code == 0 else err.getvalue()


def _merged(arguments: list[str], with_stdout: bool) -> tuple[int, str]:
    """As a shell with `2>&1` or `2>&1 >/dev/null` behind the command."""
    if any(re.fullmatch(r"\||\d*>.*", word) for word in arguments):
        raise ValueError(f"redirects in another order: {arguments}")
    both = io.StringIO()
    with redirect_stdout(both if with_stdout else io.StringIO()), redirect_stderr(both):
        code = main(arguments)
    return code, both.getvalue() if code == 0 else ""


def _make_run() -> str:
    """What `make run` runs, its set-up apart."""
    recipe = re.search(r"^run:[^\n]*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    line = recipe[1].replace("\\\n", " ").strip().removeprefix("@$(BIN)/")
    return line.replace("workloads/", f"{ROOT}/workloads/")


def lines_of(output: str) -> list[str]:
    """Without trailing blanks, which no editor keeps."""
    return "\n".join(line.rstrip() for line in output.split("\n")).strip("\n").split("\n")


def matches(shown: str, printed: str) -> bool:
    """Whether the guide shows what was printed, but for lines it leaves out."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == _OMITTED else re.escape(line) + r"\n" for line in lines_of(shown)
    )
    return re.fullmatch(pattern, "\n".join([*lines_of(printed), ""])) is not None


def refreshed(shown: str, printed: str) -> str:
    """What to show of a new output: as many lines from its top and bottom as before, and between two gaps
    as many from the line that begins as the first of them does.

    Raises:
        LookupError: there is none that does.
    """
    new = lines_of(printed)
    first, *others = _pieces(lines_of(shown))
    if not others:
        return "\n".join([*new, ""])
    kept = new[: len(first)]
    for piece in others[:-1]:
        at = _where(piece[0], new)
        kept += [_OMITTED, *new[at : at + len(piece)]]
    last = others[-1]
    kept += [_OMITTED, *(new[-len(last) :] if last else [])]
    return "\n".join([*kept, ""])


def _where(line: str, lines: list[str]) -> int:
    """The first of the lines that begins as this one does: to the letter, or else but for its numbers."""
    for alike in (str, _without_numbers):
        for index, other in enumerate(lines):
            if alike(other).startswith(alike(line)[:_ANCHOR]):
                return index
    raise LookupError(f"nothing begins like {line!r} any more: choose another line to show")


def _without_numbers(line: str) -> str:
    return re.sub(r"\d[\d.,]*", "0", line)


def _pieces(lines: list[str]) -> list[list[str]]:
    """What is shown between the gaps."""
    pieces: list[list[str]] = [[]]
    for line in lines:
        if line.strip() == _OMITTED:
            pieces.append([])
        else:
            pieces[-1].append(line)
    return pieces


def refresh(guide: Path) -> None:
    """Runs the examples of a guide and writes what they print now into it."""
    text = guide.read_text(encoding="utf-8")
    parts: list[str] = []
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner.beside(guide, Path(folder))
        for example in examples(text):
            code, printed = runner.run(example) or (example.exit_code, example.shown or "")
            if code != example.exit_code:
                sys.exit(f"{guide.name}:{example.block.line}: exit code {code}: {example.code}{printed}")
            if example.shown is not None and example.where is not None:
                begin, end = example.where
                blank = "\n" if example.shown.endswith("\n\n") else ""
                parts += [text[done:begin], refreshed(example.shown, printed), blank]
                done = end
    guide.write_text("".join([*parts, text[done:]]), encoding="utf-8")


if __name__ == "__main__":
    for each in [Path(name) for name in sys.argv[1:]] or [*GUIDES, ROOT / "README.md", *QUESTIONS]:
        refresh(each)
