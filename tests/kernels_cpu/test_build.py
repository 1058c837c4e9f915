"""Building the kernels: cache, compiler errors, processes that start together."""

from __future__ import annotations

import ctypes
import multiprocessing
from pathlib import Path

import pytest

from engine.kernels.cpu import build
from engine.kernels.cpu.build import InstructionSet, KernelBuildError, build_library


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and sources that compile in no time."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "kernels.cpp").write_text('extern "C" int wb_isa(void) { return 0; }\n')
    monkeypatch.setattr(build, "SOURCE_DIR", sources)
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path


def built(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*.so"))


def test_built_once_and_again_when_a_source_or_the_instruction_set_changes(cache: Path) -> None:
    first = build_library()
    stamp = first.stat().st_mtime_ns
    assert build_library() == first
    assert first.stat().st_mtime_ns == stamp
    assert build_library("portable") != first
    (build.SOURCE_DIR / "kernels.cpp").write_text('extern "C" int wb_isa(void) { return 1; }\n')
    assert build_library() not in (first, build_library("portable"))
    assert len(built(cache)) == 4


def test_libraries_of_one_process_share_nothing(cache: Path) -> None:
    """A static in a template is one object for the whole process, unless its library hides it."""
    (build.SOURCE_DIR / "kernels.cpp").write_text(
        "template <class T> int& calls() { static int n = 0; return n; }\n"
        'extern "C" __attribute__((visibility("default"))) int wb_isa(void) { return ++calls<int>(); }\n'
    )
    libraries = [build_library("native"), build_library("portable")]
    assert len(built(cache)) == 2
    assert [ctypes.CDLL(str(path)).wb_isa() for path in libraries] == [1, 1]


def test_a_compile_error_is_one_line_and_leaves_nothing_behind(cache: Path) -> None:
    (build.SOURCE_DIR / "kernels.cpp").write_text("this is not C++\n")
    with pytest.raises(KernelBuildError, match=r"failed: .*kernels\.cpp") as caught:
        build_library()
    assert "\n" not in str(caught.value)
    assert built(cache) == []
    assert not list(cache.rglob("build-*"))


@pytest.mark.usefixtures("cache")
def test_without_a_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(KernelBuildError, match=r"compiler g\+\+ or clang\+\+ not found: install"):
        build_library()


@pytest.mark.usefixtures("cache")
def test_the_users_compiler_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KernelBuildError, match="no-such-compiler not found"):
        build_library()


@pytest.mark.usefixtures("cache")
def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CPU_ISA", "mmx")
    with pytest.raises(KernelBuildError, match="WORKBENCH_CPU_ISA='mmx'"):
        build_library()


@pytest.mark.parametrize(("allowed", "isa"), [(True, "native"), (False, "native"), (False, "avx2")])
def test_without_the_systems_word_the_matrix_unit_is_left_out(
    monkeypatch: pytest.MonkeyPatch, allowed: bool, isa: InstructionSet
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(build, "matrix_unit_allowed", lambda: allowed)
    # Other instruction sets have no matrix unit to leave out.
    assert ("-mno-amx-tile" in build._flags(isa)) is (isa == "native" and not allowed)


def test_a_cache_that_can_not_be_made_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "file").write_text("not a folder")
    monkeypatch.setenv("WORKBENCH_CACHE", str(cache / "file"))
    with pytest.raises(KernelBuildError, match="can't be built in"):
        build_library()


def _build_in_child(_: int) -> str:
    return str(build_library("portable"))


def test_processes_that_start_together_build_once(cache: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        paths = set(pool.map(_build_in_child, range(3), chunksize=1))
    assert len(paths) == 1
    assert len(built(cache)) == 1
