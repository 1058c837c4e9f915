"""The house rules that no other tool checks."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


def test_no_file_is_too_long_to_hold_in_the_head() -> None:
    files = tracked("*.py", "*.cpp", "*.h")
    too_long = {
        str(path.relative_to(ROOT)): n
        for path in files
        if (n := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert files
    assert too_long == {}


def test_constraints_pin_every_direct_dependency() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {
        requirement.split(";")[0].split(">")[0].split("[")[0].strip().lower().replace("_", "-")
        for requirement in wanted
    }
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    assert names - pinned == set()


def test_readme_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for command in ("sweep", "test"):
        assert f"make {command}" in readme
        assert f"\n{command}:" in makefile
