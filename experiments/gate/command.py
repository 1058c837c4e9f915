"""The command ``workbench gate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from experiments.gate.decision import Rule
    from experiments.gate.run import GateRequest

EXIT_USAGE = 2
EXIT_UNUSABLE = 3
EXIT_INTERRUPTED = 130
_WHAT, _HOW, _OUTPUT = "What to compare", "How", "Output"


def gate(
    base: Annotated[
        str | None,
        typer.Option(help="Revision to compare with (default origin/main).", rich_help_panel=_WHAT),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="Revision under test (default: the working folder).", rich_help_panel=_WHAT),
    ] = None,
    base_dir: Annotated[
        Path | None, typer.Option(help="A source folder in the place of --base.", rich_help_panel=_WHAT)
    ] = None,
    head_dir: Annotated[
        Path | None, typer.Option(help="A source folder in the place of --head.", rich_help_panel=_WHAT)
    ] = None,
    tiers: Annotated[
        str,
        typer.Option(help="0 outputs, 1 scheduler on virtual time, 2 wall clock.", rich_help_panel=_HOW),
    ] = "0,1,2",
    pairs: Annotated[
        str,
        typer.Option(help="Looks of tier 2, in pairs of runs; the first at least 10.", rich_help_panel=_HOW),
    ] = "10,20,30",
    model: Annotated[
        str, typer.Option(help="Model of tiers 0 and 2.", rich_help_panel=_HOW)
    ] = "smollm2-135m",
    num_threads: Annotated[
        int | None, typer.Option(help="Compute threads of the engine, both sides.", rich_help_panel=_HOW)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order inside the pairs.", rich_help_panel=_HOW)] = 0,
    ack: Annotated[
        Path | None,
        typer.Option(
            help="File of wanted changes (default: .perf-ack.toml of the head).", rich_help_panel=_HOW
        ),
    ] = None,
    even_if_unchanged: Annotated[
        bool,
        typer.Option("--even-if-unchanged", help="Tier 2 also when no code differs.", rich_help_panel=_HOW),
    ] = False,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Measure this machine's noise and the gate's false alarms on it.",
            rich_help_panel=_HOW,
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for gate.json, gate.md, junit.xml.", rich_help_panel=_OUTPUT)
    ] = Path("gate"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Is one revision of the engine as right and as fast as another?

    Exit code 0: pass or inconclusive, 1: regression, 2: usage, 3: nothing believable was measured.
    """
    from engine.errors import InvalidInputError
    from experiments.gate.run import GateRequest

    try:
        request = GateRequest(
            out=out, base=base, head=head, base_dir=base_dir, head_dir=head_dir, tiers=_tiers(tiers),
            model=model, engine={} if num_threads is None else {"num_threads": num_threads}, ack=ack,
            seed=seed, even_if_unchanged=even_if_unchanged, rule=_rule(pairs),
        )  # fmt: skip
        request = _check(request)
        _make_folder(out)
        if self_test:
            _self_test(request, as_json)
        _gate(request, as_json)
    except InvalidInputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    except KeyboardInterrupt:
        typer.echo("error: interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _gate(request: GateRequest, as_json: bool) -> NoReturn:
    from experiments.gate.output import markdown, write_results
    from experiments.gate.run import Gate

    result = Gate(request, say=_say).result()
    write_results(result, request.out)
    if as_json:
        typer.echo(result.model_dump_json())
    else:
        typer.echo(markdown(result).split("\n", 1)[1])
    _say(f"{result.verdict}: {result.reason} ({request.out / 'gate.md'})")
    raise typer.Exit(result.exit_code)


def _self_test(request: GateRequest, as_json: bool) -> NoReturn:
    from experiments.control import ControlKernel
    from experiments.gate.arms import check_folder, commit_of
    from experiments.gate.models import Side, Unusable
    from experiments.gate.scripts_runner import run_turns
    from experiments.gate.selftest import self_test
    from experiments.gate.tier2 import CONTROL_REPEATS
    from workbench.atomic import write_json

    folder = check_folder("head-dir", request.head_dir or Path(__file__).resolve().parents[2])
    side = Side(
        name="head", revision=None, commit=commit_of(folder), folder=str(folder), python=sys.executable
    )
    try:
        found = self_test(
            side, run_turns, {"model": request.model, **request.engine}, request.rule.looks[-1],
            control=ControlKernel(CONTROL_REPEATS), seed=request.seed, say=_say,
        )  # fmt: skip
    except Unusable as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_UNUSABLE) from None
    request.out.mkdir(parents=True, exist_ok=True)
    write_json(request.out / "aa.json", found.model_dump(mode="json"))
    typer.echo(json.dumps(found.model_dump(mode="json")) if as_json else found.text)
    raise typer.Exit(0)


def _check(request: GateRequest) -> GateRequest:
    """Two revisions or two folders, nothing in between."""
    from dataclasses import replace

    from engine.errors import InvalidInputError

    folders = [request.base_dir, request.head_dir]
    if any(folders):
        if request.base is not None or request.head is not None:
            raise InvalidInputError("base", request.base or request.head, "either revisions or folders")
        if request.base_dir is None and request.head_dir is not None:
            return request  # --self-test of a folder; a gate asks for the other one itself
        if request.head_dir is None:
            raise InvalidInputError("head-dir", None, "a folder beside --base-dir")
        return request
    return request if request.base is not None else replace(request, base="origin/main")


def _make_folder(out: Path) -> None:
    """Before the work, not after it: the results must have a place."""
    from engine.errors import InvalidInputError

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError("out", str(out), f"a folder that can be written ({error.strerror})") from None


def _tiers(text: str) -> tuple[int, ...]:
    from engine.errors import InvalidInputError

    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or any(word not in ("0", "1", "2") for word in words):
        raise InvalidInputError("tiers", text, "some of 0,1,2")
    return tuple(sorted({int(word) for word in words}))


def _rule(text: str) -> Rule:
    from engine.errors import InvalidInputError
    from experiments.gate.decision import LOOKS, Rule

    try:
        looks = tuple(int(word) for word in text.split(","))
    except ValueError:
        looks = ()
    if not looks or looks[0] < LOOKS[0] or list(looks) != sorted(set(looks)) or looks[-1] > 200:
        allowed = (
            f"rising numbers such as 10,20,30, the first at least {LOOKS[0]}: fewer pairs can't reach the p"
        )
        raise InvalidInputError("pairs", text, allowed)
    return Rule(looks=looks)


def _say(text: str) -> None:
    typer.echo(text, err=True)
