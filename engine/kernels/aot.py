"""Compile the Triton kernels for a GPU that need not be present, and inspect the machine code.

`python -m engine.kernels.aot` takes every variant that engines of the bundled models can launch
(`engine.variants`), prints a row for each and fails on a broken promise: spilled registers, more shared
memory than the GPU has, a tensor-core or asynchronous-copy instruction missing.

A kernel module states its promises in `promise(kernel, constants) -> Promise`, given the kernel's name and
the value of every constexpr parameter.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from engine.kernels.gpu import Gpu
from engine.kernels.promise import Promise

OPCODES = ("HGMMA", "HMMA", "LDGSTS", "UTMALDG", "LDL", "STL")
"""SASS opcodes counted: wgmma, mma.sync, cp.async, TMA loads, and the two that touch local memory."""

_WAIT = "ACQBULK"
_GLOBAL = ("LDG", "STG", "LD", "ST", "LDGSTS", "ATOM", "ATOMG", "RED", "UTMALDG", "UTMASTG")
_PRODUCTS = ("HGMMA", "HMMA", "QGMMA")
_ASYNCHRONOUS = re.compile(r"\bHGMMA\b")
_ALL_DONE = re.compile(r"\bWARPGROUP\.DEPBAR\S* gsb\d, 0x0\b")
_LABEL, _JUMP = re.compile(r"^(\.L_x?_?\d+):"), re.compile(r"\bBRA\b.*`\((\.L_x?_?\d+)\)")
_REGISTERS = re.compile(r"(\d+) registers, (\d+) spills")
_MNEMONIC = re.compile(r"^\s+(?:/\*\w+\*/)?\s+(?:@!?U?P\w+ )?([A-Z0-9]+)[. ]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Report:
    """Machine-code facts of a variant: per-thread registers, bytes per block, counts of `OPCODES`."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    opcodes: Mapping[str, int] = field(default_factory=dict)
    prologue: int = 0
    """Instructions before the loop over tiles."""
    tile: int = 0
    """Instructions of a turn of that loop; 0 = it has none that multiplies."""
    idle: int = 0
    """Those of them during which no product is under way, where products are asynchronous (wgmma)."""
    early: int = 0
    """Accesses to global memory before the wait of a kernel that is launched early; -1 = it does not wait."""

    @property
    def spills(self) -> int:
        """Instructions that move registers to and from local memory."""
        return self.opcodes.get("STL", 0) + self.opcodes.get("LDL", 0)

    def __str__(self) -> str:
        opcodes = " ".join(f"{name}={count}" for name, count in self.opcodes.items() if count)
        memory = f"{self.spills} spills, {self.shared_bytes} B shared"
        idle = f" ({self.idle} beside no product)" if self.idle else ""
        loop = f", {self.prologue} + {self.tile} a tile instructions{idle}" if self.tile else ""
        return f"{self.registers} registers, {memory}{loop} {opcodes}".rstrip()


def broken_promises(promise: Promise, report: Report, gpu: Gpu) -> list[str]:
    """Violations: spills, more shared memory or registers than allowed, an opcode expected and absent."""
    problems = []
    if report.spills or report.stack_bytes:
        problems.append(f"{report.spills} spills and {report.stack_bytes} B of stack")
    if report.shared_bytes > gpu.shared_bytes:
        problems.append(f"{report.shared_bytes} B of shared memory, above {gpu.shared_bytes}")
    if report.early:
        problems.append("does not wait" if report.early < 0 else f"{report.early} accesses before the wait")
    if report.registers > promise.max_registers:
        problems.append(f"{report.registers} registers, above {promise.max_registers}")
    absent = [opcode for opcode in promise.opcodes if gpu.arch == 90 and not report.opcodes.get(opcode)]
    return problems + [f"no {opcode} instruction" for opcode in absent]


def check(data: str, gpu: Gpu) -> tuple[Report, list[str]]:
    """Compile a variant, given by its data, and check its promise: the report, and the violations."""
    from engine.kernels.dry_run import Variant, compiled

    variant = Variant(data)
    kernel = compiled(variant, gpu)
    code = _disassembled("nvdisasm", "-c", kernel.asm["cubin"])
    resources = _resources(kernel.asm["cubin"])
    early = accesses_before_wait(code) if variant.constants.get("DEPENDENT") else 0
    loop = tile_loop(code)
    report = Report(*resources, kernel.metadata.shared, _opcodes(code), *loop, idle_in(code, *loop), early)
    promise = importlib.import_module(variant.module).promise(variant.kernel, variant.constants)
    return report, broken_promises(promise, report, gpu)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Register and stack bytes of the one kernel in a cubin."""
    usage = _disassembled("cuobjdump", "-res-usage", cubin)
    counts = {name: int(value) for name, value in re.findall(r"\b(REG|STACK):(\d+)", usage)}
    return counts["REG"], counts["STACK"]


def _opcodes(code: str) -> dict[str, int]:
    mnemonics = Counter(_MNEMONIC.findall(code))
    return {name: mnemonics[name] for name in OPCODES}


def accesses_before_wait(code: str) -> int:
    """Accesses to global memory before the instruction that waits for the kernel before; -1 without it."""
    mnemonics = _MNEMONIC.findall(code)
    if _WAIT not in mnemonics:
        return -1
    return sum(name in _GLOBAL for name in mnemonics[: mnemonics.index(_WAIT)])


def tile_loop(code: str) -> tuple[int, int]:
    """Instructions before the innermost loop that multiplies on tensor cores, and those of a turn of it.

    The loop without masks, where there are two: the shorter one.
    """
    labels: dict[str, int] = {}
    opcodes: list[str] = []
    loops: list[tuple[int, int]] = []
    for line in code.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(opcodes)
        elif mnemonic := _MNEMONIC.match(line):
            opcodes.append(mnemonic[1])
            jump = _JUMP.search(line)
            if jump is not None and jump[1] in labels:
                loops.append((labels[jump[1]], len(opcodes)))
    turns = [(stop - start, start) for start, stop in loops if set(_PRODUCTS) & set(opcodes[start:stop])]
    turn, start = min(turns, default=(0, 0))
    return start, turn


def idle_in(code: str, start: int, turn: int) -> int:
    """Instructions of a turn of a loop during which no asynchronous product is under way; 0 if it has none.

    Products are under way from one turn to the next.
    """
    lines = [line for line in code.splitlines() if _MNEMONIC.match(line)][start : start + turn]
    if not any(map(_ASYNCHRONOUS.search, lines)):
        return 0
    under_way, idle = False, 0
    for place, line in enumerate((*lines, *lines)):
        if _ASYNCHRONOUS.search(line):
            under_way = True
        elif _ALL_DONE.search(line):
            under_way = False
        idle += place >= turn and not under_way
    return idle


def _disassembled(tool: str, option: str, cubin: bytes) -> str:
    """Output for a cubin of one of the tools bundled with Triton."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [getattr(knobs.nvidia, tool).path, option, str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(arguments: Sequence[str]) -> int:
    """Run the command line; 1 if a promise is broken or a compilation failed, 2 on bad input."""
    from engine.kernels.command import KernelCommand

    command = KernelCommand(
        "engine.kernels.aot", "Compile kernels and check their machine code.", arguments, True
    )

    def row(result: tuple[Report, list[str]]) -> tuple[str, str]:
        report, problems = result
        return f"{report}", "; ".join(problems)

    code = command.run(partial(check, gpu=command.gpu), row)
    print(summary([(variant.kernel, text) for variant, text in command.rows.items()]), flush=True)
    return code


def summary(rows: Sequence[tuple[str, str]]) -> str:
    """A line for each kernel: its variants, the most registers of one, and spills, from the text of each."""
    facts: dict[str, list[tuple[int, int]]] = {}
    for kernel, text in rows:
        registers = _REGISTERS.match(text)
        assert registers is not None, text
        facts.setdefault(kernel, []).append((int(registers[1]), int(registers[2])))
    return "\n".join(
        f"{kernel.lstrip('_'):20} {len(of_each):5} variants, at most {max(of_each)[0]} registers, "
        f"{sum(spills for _, spills in of_each)} spills"
        for kernel, of_each in sorted(facts.items())
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
