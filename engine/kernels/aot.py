"""Compile Triton kernels for sm_90 without a GPU and look at what the compiler made of them.

A kernel module takes part by exposing `aot_cases() -> list[AotCase]` and by its line in `KERNEL_MODULES`.
`python -m engine.kernels.aot` compiles every case, prints one line each and fails on a broken promise:
spilled registers, more shared memory than an SM has, a tensor-core or asynchronous-copy instruction missing.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KERNEL_MODULES = (
    "engine.kernels.triton.decode_attention",
    "engine.kernels.triton.denoise",
    "engine.kernels.triton.prefill_attention",
    "engine.kernels.triton.activation",
    "engine.kernels.triton.moe",
    "engine.kernels.triton.norm",
    "engine.kernels.triton.prepare",
    "engine.kernels.triton.qkv",
)

SM90_SHARED_BYTES = 227 * 1024
"""What one thread block may use of a Hopper SM's shared memory."""

OPCODES = ("HGMMA", "HMMA", "LDGSTS", "UTMALDG", "LDL", "STL")
"""SASS opcodes counted: wgmma, mma.sync, cp.async, TMA loads, and the two that touch local memory."""


_MNEMONIC = re.compile(r"^\s+(?:/\*\w+\*/)?\s+(?:@!?U?P\w+ )?([A-Z0-9]+)[. ]", re.MULTILINE)


@dataclass(frozen=True)
class AotCase:
    """One specialisation of a kernel, as it would be launched.

    Args:
        name: what to call it in reports ("decode d128 g4 page16").
        kernel: the `@triton.jit` function, or what `autotuned` made of it.
        signature: type of every argument that is not a constexpr, in order: `"*bf16"`, `"i32"`, `"fp32"`.
            A suffix `:16` promises divisibility by 16, as the launcher would find it for aligned pointers
            and even strides. Without it Triton emits no asynchronous copies: another kernel is checked.
        constexprs: value of every constexpr argument.
        expects: opcodes the machine code must contain ("HGMMA", "LDGSTS").
        max_registers: upper bound per thread.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    expects: tuple[str, ...] = ()
    max_registers: int = 255


@dataclass(frozen=True)
class AotReport:
    """What the compiler made of a case: per-thread registers, bytes per block, counts of `OPCODES`."""

    name: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    opcodes: Mapping[str, int] = field(default_factory=dict)

    @property
    def spills(self) -> int:
        """Instructions that move registers to and from local memory."""
        return self.opcodes.get("STL", 0) + self.opcodes.get("LDL", 0)

    def __str__(self) -> str:
        found = " ".join(f"{name}={count}" for name, count in self.opcodes.items() if count)
        memory = f"{self.spills} spills, {self.shared_bytes} B shared"
        return f"{self.name}: {self.registers} registers, {memory} {found}".rstrip()


class ResourceError(RuntimeError):
    """A compiled kernel breaks a promise its case makes."""


def compile_case(case: AotCase) -> AotReport:
    """Compile for sm_90 and read registers, shared memory and opcodes from the machine code.

    Raises:
        RuntimeError: the kernels were imported for Triton's interpreter, which has nothing to compile.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = _jit_function(case.kernel)
    types = {name: text.partition(":")[0] for name, text in case.signature.items()}
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    missing = [name for name in kernel.arg_names if name not in types and name not in case.constexprs]
    if missing:
        names = ", ".join(missing)
        raise ResourceError(f"{case.name}: the case gives neither a type nor a value for {names}")
    attributes = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, text in case.signature.items()
        if text.endswith(":16")
    }
    source = ASTSource(kernel, signature, constexprs=dict(case.constexprs), attrs=attributes)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    registers, stack_bytes, opcodes = _inspect(compiled.asm["cubin"])
    return AotReport(case.name, registers, stack_bytes, compiled.metadata.shared, opcodes)


def check(case: AotCase) -> AotReport:
    """Compile a case and hold it to its promises.

    Raises:
        ResourceError: it breaks one of them.
    """
    report = compile_case(case)
    if problems := broken_promises(case, report):
        raise ResourceError(f"{case.name}: {'; '.join(problems)}")
    return report


def broken_promises(case: AotCase, report: AotReport) -> list[str]:
    """What is wrong: spills, more shared memory or registers than allowed, an opcode expected and absent."""
    problems = []
    if report.spills or report.stack_bytes:
        problems.append(f"{report.spills} spills and {report.stack_bytes} B of stack")
    if report.shared_bytes > SM90_SHARED_BYTES:
        problems.append(f"{report.shared_bytes} B of shared memory, above {SM90_SHARED_BYTES}")
    if report.registers > case.max_registers:
        problems.append(f"{report.registers} registers, above {case.max_registers}")
    absent = [opcode for opcode in case.expects if not report.opcodes.get(opcode)]
    return problems + [f"no {opcode} instruction" for opcode in absent]


def _jit_function(kernel: Any) -> Any:
    from triton.runtime.jit import JITFunction

    while not isinstance(kernel, JITFunction):
        if not hasattr(kernel, "fn"):
            raise RuntimeError("TRITON_INTERPRET was set when the kernels were imported: unset it to compile")
        kernel = kernel.fn
    return kernel


def _inspect(cubin: bytes) -> tuple[int, int, dict[str, int]]:
    """Registers, stack bytes and opcode counts of the one kernel in a cubin."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _output(knobs.nvidia.cuobjdump.path, "-res-usage", str(path))
        assembly = _output(knobs.nvidia.nvdisasm.path, "-c", str(path))
    resources = {name: int(value) for name, value in re.findall(r"\b(REG|STACK):(\d+)", usage)}
    mnemonics = Counter(_MNEMONIC.findall(assembly))
    return resources["REG"], resources["STACK"], {name: mnemonics[name] for name in OPCODES}


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def all_cases(modules: Sequence[str] = KERNEL_MODULES) -> list[AotCase]:
    """The cases of every kernel module."""
    return [case for name in modules for case in importlib.import_module(name).aot_cases()]


def main(texts: Sequence[str]) -> int:
    """Check the cases whose name holds any of the texts, or all of them; 1 when any breaks a promise."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        print("unset TRITON_INTERPRET: the interpreter has nothing to compile", file=sys.stderr)
        return 2
    chosen = [case for case in all_cases() if not texts or any(text in case.name for text in texts)]
    if not chosen:
        print(f"no case is named like {' or '.join(texts)}", file=sys.stderr)
        return 2
    failures = 0
    for case in chosen:
        try:
            print(check(case), flush=True)
        except ResourceError as error:
            failures += 1
            print(f"FAILED {error}", file=sys.stderr, flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
