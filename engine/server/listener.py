"""The listening socket: taken before the model is loaded, listened on after."""

from __future__ import annotations

import socket

from engine.errors import InvalidInputError


def bind_listener(host: str, port: int) -> socket.socket:
    """A bound TCP socket that doesn't listen yet, so clients are refused (not left hanging) until the model
    is ready.

    Raises:
        InvalidInputError: unknown host, or the port is taken or not permitted.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise InvalidInputError("host", host, f"an address of this machine ({error.strerror})") from None
    family, kind, protocol, _, address = infos[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if port:  # a restarted server must not wait for its old connections' TIME_WAIT
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InvalidInputError("port", port, f"a free port on {host} ({error.strerror})") from None
    listener.setblocking(False)
    return listener
