"""``python -m engine.server --config-json '{"model": ...}' --host H --port P``: what the workbench starts as
its target.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from engine.server.options import ServerOptions

API_KEY_VARIABLE = "WORKBENCH_API_KEY"


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 stopped, 1 the engine died, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m engine.server", description=__doc__)
    parser.add_argument("--config-json", default="{}", help="EngineConfig as a JSON object.")
    for name, field in ServerOptions.model_fields.items():
        if name != "api_key":  # a process list shows arguments; the key comes by the environment
            default = field.default
            parser.add_argument(
                f"--{name.replace('_', '-')}", type=type(default), default=default, help=field.description
            )
    arguments = vars(parser.parse_args(argv))
    try:
        fields = json.loads(arguments.pop("config_json"))
        if not isinstance(fields, dict):
            raise InvalidInputError("config-json", fields, "a JSON object")
        config = EngineConfig.create(**fields)
        options = ServerOptions.create(**arguments, api_key=os.environ.get(API_KEY_VARIABLE) or None)
    except json.JSONDecodeError as error:
        print(f"error: config-json: not valid JSON: {error}", file=sys.stderr)
        return 2
    except InvalidInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from engine.server.runner import run

    return run(config, options)


if __name__ == "__main__":
    sys.exit(main())
