"""README and the other pages say what is true: CI runs README's two commands, job files load, links lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("jobs/**/*.md"))]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_two_commands() -> None:
    first, second = blocks(README, "sh")
    assert first.count("\n") == second.count("\n") == 1, "one line each"
    assert first.startswith("python3 -m venv ")
    assert "mpirun -n 8 python -m hpctrain\n" in first
    assert second.endswith("python -m pytest\n")


@pytest.mark.parametrize("number", [1, 2])
def test_ci_runs_the_command_that_readme_has(number: int) -> None:
    command = [sys.executable, str(ROOT / ".ci" / "readme-command"), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == blocks(README, "sh")[number - 1]
    assert f"\nreadme {number}" in (ROOT / ".ci" / "run").read_text()


def test_ci_script_is_sound_bash() -> None:
    for script in (".ci/run", "jobs/train.sbatch"):
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True, timeout=60)
        assert "set -euo pipefail" in (ROOT / script).read_text()


def test_extras_that_readme_installs_are_there() -> None:
    setup = (ROOT / "setup.cfg").read_text()
    extras = setup.split("[options.extras_require]")[1].split("\n[")[0]
    for name in {name for names in re.findall(r"'\.\[([\w,]+)\]'", README) for name in names.split(",")}:
        assert f"\n{name} =" in extras


@pytest.mark.parametrize("text", blocks(README, "toml"), ids=lambda text: text.split("\n")[0])
def test_job_in_readme_is_a_job(text: str, tmp_path: Path) -> None:
    from hpctrain import Job

    (tmp_path / "job.toml").write_text(text)
    job = Job.load(tmp_path / "job.toml")
    assert job.data.input == tomllib.loads(text)["data"]["input"]


@pytest.mark.parametrize("text", blocks(README, "python"), ids=["from Python"])
def test_python_in_readme_imports_what_there_is(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            exec(ast.unparse(node), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def test_commands_in_readme_are_understood() -> None:
    """Every verb and option that README shows is in that verb's help."""
    commands = [line for block in blocks(README, "bash") for line in block.splitlines() if "-m hpctrain" in line]
    assert commands
    for line in commands:
        verb, *words = line.split("-m hpctrain ")[1].split()
        done = subprocess.run(
            [sys.executable, "-m", "hpctrain", verb, "--help"],
            cwd=ROOT, capture_output=True, text=True, timeout=60, env={"COLUMNS": "200", "NO_COLOR": "1", "PATH": ""},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for option in (word for word in words if word.startswith("--")):
            assert option in done.stdout, f"{line}: {verb} knows no {option}"
