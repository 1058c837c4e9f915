"""What the HTTP server is told beside the engine's configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from engine.errors import InvalidInputError


class ServerOptions(BaseModel):
    """Flags of ``workbench serve`` that are not the engine's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0: a free one.")
    api_key: SecretStr | None = Field(
        None, min_length=1, description="Require this key (Authorization: Bearer KEY)."
    )
    max_body_bytes: int = Field(
        4 << 20, ge=1024, description="Largest request body; a bigger one is refused with 413."
    )
    drain_timeout_s: float = Field(
        30.0, ge=0.0, le=3600.0, description="On SIGTERM, seconds that running requests get to finish."
    )

    @classmethod
    def create(cls, **fields: object) -> ServerOptions:
        """Validate ``fields``; raise :class:`InvalidInputError` naming the first bad one."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"]) or "options"
            raise InvalidInputError(name, first.get("input"), first["msg"]) from None
