"""The command ``workbench``: assembled from the entry points of the packages that are installed.

A package brings its commands by an entry point of the group ``workbench.commands`` whose value is a
function ``register(app)``.
Known errors end in one line on stderr and an exit code: 2 bad input, 130 Ctrl-C, else the error's own.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer
from typer.exceptions import TyperException

GROUP = "workbench.commands"
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def build_app() -> typer.Typer:
    """The application with every installed package's commands."""
    app = typer.Typer(
        name="workbench",
        help="Benchmark, profile and tune LLM serving: load, engine, traces, verdict.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            point.load()(app)
        except ImportError as error:
            # One broken package must not take the other commands away.
            print(f"warning: the commands of {point.value} are missing: {error}", file=sys.stderr)
    return app


def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=lambda v: _show_version(v), is_eager=True
        ),
    ] = False,
) -> None:
    pass


def _show_version(wanted: bool) -> None:
    if wanted:
        from workbench.manifest import tool_version

        typer.echo(f"workbench {tool_version()}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    from engine.errors import EngineError
    from workbench.errors import WorkbenchError
    from workloads.errors import WorkloadError

    try:
        command = typer.main.get_command(build_app())
        # Not command.main(): it swallows Ctrl-C and leaves nothing but an exit code.
        words = list(sys.argv[1:] if arguments is None else arguments)
        with command.make_context("workbench", words) as context:
            result = command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except TyperException as error:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        if text.startswith("Usage:"):
            # No command was given: the message is the help.
            print(text, file=sys.stderr)
            return EXIT_USAGE
        # pydantic's prefix says nothing to a user
        return _fail(text.replace(": Value error, ", ": "), getattr(error, "exit_code", EXIT_USAGE))
    except (EngineError, WorkloadError) as error:
        return _fail(str(error), EXIT_USAGE)
    except WorkbenchError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output left (`| head`): nothing to say to nobody.
        sys.stderr.close()
        return 1
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code
