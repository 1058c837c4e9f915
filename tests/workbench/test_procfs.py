"""Reading procfs cheaply."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from workbench.collectors.procfs import ProcessTree, ProcFile, field, read_once


def test_a_file_is_read_anew_each_time_and_whole(tmp_path):
    path = tmp_path / "stat"
    path.write_bytes(b"one")
    file = ProcFile(path)
    assert file.read() == b"one"
    long = bytes(range(256)) * 100
    path.write_bytes(long)
    assert file.read() == long
    file.close()
    path.unlink()
    assert file.read() == b""
    path.write_bytes(b"back")
    assert file.read() == b"back"


def test_a_process_that_has_ended_reads_as_nothing():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    file = ProcFile(f"/proc/{child.pid}/stat")
    assert file.read().startswith(str(child.pid).encode())
    child.communicate(b"\n")
    assert file.read() == b""
    assert read_once(f"/proc/{child.pid}/stat") == b""


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (b"a 1\nctxt 77\nb 2\n", b"ctxt ", 77),
        (b"ctxt 5", b"ctxt ", 5),
        (b"MemFree: 9 kB\nMemAvailable:   1234 kB\n", b"MemAvailable:", 1234),
        (b"xctxt 5\n", b"ctxt ", None),
        (b"ctxt none\n", b"ctxt ", None),
        (b"ctxt \n", b"ctxt ", None),
        (b"", b"ctxt ", None),
    ],
)
def test_a_number_behind_its_key(text, key, value):
    assert field(text, key) == value


def process(proc, pid, parent, comm="x"):
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({comm}) S {parent} 0 0\n")


def test_descendants_of_the_roots(tmp_path):
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (20, 1)):
        process(tmp_path, pid, parent, "a) S 1 (b")
    (tmp_path / "self").mkdir()
    tree = ProcessTree(tmp_path)
    assert sorted(tree.of([10])) == [10, 11, 12]
    process(tmp_path, 13, 12)
    (tmp_path / "20" / "stat").unlink()
    (tmp_path / "20").rmdir()
    assert sorted(tree.of([10, 20, 99])) == [10, 11, 12, 13]
    assert ProcessTree(tmp_path / "nowhere").of([10]) == []


def test_the_tree_of_this_machine():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert {os.getpid(), child.pid} <= set(ProcessTree().of([os.getpid()]))
    finally:
        child.communicate(b"\n")
