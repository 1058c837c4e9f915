"""The one error of this package: a workload that can't be built as asked."""

from __future__ import annotations


class WorkloadError(ValueError):
    """One line naming field, value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        if isinstance(value, dict):
            # A whole table says nothing in one line: the rule that it breaks names its fields.
            super().__init__(f"{field}: {allowed}")
            return
        shown = repr(value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{field}={shown}: {allowed}")
