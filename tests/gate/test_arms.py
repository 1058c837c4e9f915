"""The Python of a side: the installed one where dependencies are equal, else a whole environment or none."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.gate_plants import ROOT
from experiments.gate.arms import python_for
from experiments.gate.models import GateVerdict, Unusable
from experiments.gate.run import Gate, GateRequest
from experiments.gate.scripts_runner import one_after_the_other
from tests.gate.sides import ScriptedWall, calm


def tree(folder: Path, *, other_dependencies: bool) -> Path:
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "__init__.py").write_text("")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, folder / name)
    if other_dependencies:
        (folder / "constraints.txt").write_text("# other versions\n")
    return folder


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever builds an environment is killed at once, as by the memory's guard."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_equal_dependencies_need_no_environment(tmp_path: Path) -> None:
    assert python_for("base", tree(tmp_path / "a", other_dependencies=False), tmp_path) == sys.executable
    assert not list(tmp_path.glob("venv-*"))


@pytest.mark.usefixtures("killed")
def test_a_killed_build_of_the_base_is_exit_code_3(tmp_path: Path) -> None:
    base, head = (
        tree(tmp_path / "base", other_dependencies=True),
        tree(tmp_path / "head", other_dependencies=False),
    )
    with pytest.raises(Unusable, match="base-1: no environment"):
        python_for("base-1", base, tmp_path)
    request = GateRequest(out=tmp_path / "out", base_dir=base, head_dir=head)
    run = ScriptedWall()
    result = Gate(request, run=run, turns=one_after_the_other(run), control=calm).result()
    assert (result.verdict, result.exit_code) == (GateVerdict.UNUSABLE, 3)
    assert "no environment" in result.reason
    assert run.asked == []
