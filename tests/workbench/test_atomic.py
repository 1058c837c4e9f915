"""Files that a reader sees whole or not at all; what is no file keeps its place."""

import os
import threading

from workbench.atomic import write_text


def test_a_device_stays_a_device(tmp_path):
    """As root a rename onto /dev/null would put a file there, for every program of the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "x")
    reader.join(timeout=10)
    assert read == ["x"]
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_is_followed(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
