"""Builds the native kernels at first use: one call of the system's C++ compiler, a few seconds, once.

The shared library goes into the user's cache, named by a hash of the sources, the flags, the compiler and the
CPU's features, so that neither an update nor a home folder shared between machines can load the wrong one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal, cast, get_args

from filelock import FileLock, Timeout

from engine.model_store import cache_root

SOURCE_DIR = Path(__file__).parent
_LOCK_TIMEOUT_S = 300.0
_COMPILE_TIMEOUT_S = 240.0

InstructionSet = Literal["native", "avx512_bf16", "avx512", "avx2", "portable"]
"""native: all that this CPU has. The others are subsets, for tests and comparisons
(``WORKBENCH_CPU_ISA``)."""

_X86_FLAGS: dict[str, tuple[str, ...]] = {
    "native": ("-march=native",),
    "avx512_bf16": ("-march=x86-64-v4", "-mavx512bf16"),
    "avx512": ("-march=x86-64-v4",),
    "avx2": ("-march=x86-64-v3",),
    "portable": (),
}
_COMMON_FLAGS = (
    "-std=c++20",
    "-O3",
    "-pthread",
    "-fPIC",
    "-shared",
    # Kernels of one instruction set must never be bound to another library of the same process.
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
)


class KernelBuildError(RuntimeError):
    """No compiler, or it failed. The message is one line that says what to do."""


def find_compiler() -> str:
    """Path of the C++ compiler: ``$CXX``, else g++, else clang++. Raises :class:`KernelBuildError`."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else ("g++", "clang++"):
        path = shutil.which(name)
        if path:
            return path
    raise KernelBuildError(
        f"C++ compiler {wanted or 'g++ or clang++'} not found: install one (for example g++) for fast kernels"
    )


def instruction_set() -> InstructionSet:
    """``WORKBENCH_CPU_ISA``, default native."""
    wanted = os.environ.get("WORKBENCH_CPU_ISA", "native")
    for known in get_args(InstructionSet):
        if wanted == known:
            return cast(InstructionSet, known)
    raise KernelBuildError(f"WORKBENCH_CPU_ISA={wanted!r}: native, avx512_bf16, avx512, avx2 or portable")


def matrix_unit_allowed() -> bool:
    """Ask the system to let this process use the AMX tile registers: without its word the first use is fatal.

    Linux on x86-64 only: ``arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)``. Asking again does no harm.
    """
    if sys.platform != "linux":
        return False
    return int(ctypes.CDLL(None).syscall(158, 0x1023, 18)) == 0


def _flags(isa: InstructionSet) -> tuple[str, ...]:
    if platform.machine().lower() in ("x86_64", "amd64"):
        flags = (*_COMMON_FLAGS, *_X86_FLAGS[isa])
        return flags if isa != "native" or matrix_unit_allowed() else (*flags, "-mno-amx-tile")
    return (*_COMMON_FLAGS, *(("-mcpu=native",) if isa == "native" else ()))


def _cpu_features() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("flags", "features")):
                return line
    except OSError:
        return platform.processor()
    return platform.processor()


def _sources() -> list[Path]:
    return sorted((*SOURCE_DIR.glob("*.cpp"), *SOURCE_DIR.glob("*.h")))


def _cache_key(compiler: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in _sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=30)
    for part in (version.stdout, " ".join(flags), _cpu_features(), platform.machine()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:20]


def build_library(isa: InstructionSet | None = None) -> Path:
    """Path of the built library, building it when the cache does not have it.

    Processes that start together wait for the one that builds; a build that dies leaves nothing behind.

    Raises:
        KernelBuildError: no compiler, no writable cache, or the compiler's own error.
    """
    compiler = find_compiler()
    flags = _flags(isa or instruction_set())
    folder = cache_root() / "kernels"
    try:
        library = folder / f"kernels-{_cache_key(compiler, flags)}.so"
        if library.exists():
            return library
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(str(library) + ".lock", timeout=_LOCK_TIMEOUT_S):
            if not library.exists():
                _compile(compiler, flags, library)
        return library
    except Timeout:
        raise KernelBuildError(
            f"another process has been building {library.name} for {_LOCK_TIMEOUT_S:.0f} s"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise KernelBuildError(f"native kernels can't be built in {folder}: {error}") from None


def _compile(compiler: str, flags: tuple[str, ...], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as scratch:
        built = Path(scratch) / library.name
        command = [compiler, *flags, str(SOURCE_DIR / "kernels.cpp"), "-o", str(built)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPILE_TIMEOUT_S
        )
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            reason = (errors or done.stderr.splitlines() or [f"exit code {done.returncode}"])[0]
            raise KernelBuildError(f"{compiler} failed: {reason}")
        os.replace(built, library)
