"""``workbench`` and ``python -m workbench``: Ctrl-C is one line from the first moment, while the commands
are still being imported.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run one command; returns the exit code."""
    try:
        from workbench.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
