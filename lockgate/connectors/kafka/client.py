"""The library's network client, changed so that it raises a refusal at once.

The library retries a refused login until time runs out, and reports only the time-out. Only the user can fix a wrong
password or certificate, so this client raises the broker's own error at once.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import cache
from typing import Any


def open_client(**configs: Any) -> Any:
    """The network client below a KafkaAdminClient (its argument `kafka_client`) that raises a refusal at once."""
    from kafka.net.compat import KafkaNetClient
    from kafka.net.selector import NetworkSelector

    net = NetworkSelector(**configs)
    return KafkaNetClient(net=net, manager=_manager_class()(net, **configs), **configs)


def is_refusal(error: BaseException | None) -> bool:
    """Whether the broker refused us, or our own check refused the broker: a retry cannot help."""
    from kafka.errors import (
        AuthorizationError,
        IllegalSaslStateError,
        SaslAuthenticationFailedError,
        UnsupportedSaslMechanismError,
    )

    if isinstance(
        error,
        (AuthorizationError, IllegalSaslStateError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError),
    ):
        return True
    # kafka-python wraps the error of the TLS layer: in a handshake as context, later as argument.
    inner = (error, getattr(error, "__context__", None), *getattr(error, "args", ()))
    reasons = [str(getattr(each, "reason", "")) for each in inner if isinstance(each, ssl.SSLError)]
    marks = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "WRONG_VERSION_NUMBER", "PROTOCOL_VERSION")
    return any(mark in reason for mark in marks for reason in reasons)


@cache
def _manager_class() -> Any:
    from kafka.net.manager import KafkaConnectionManager

    class EagerManager(KafkaConnectionManager):  # type: ignore[misc]
        """kafka-python 3.0 retries a refused login until time runs out; this class raises the reason.

        It overrides three inner methods of the library. If a later version has others, it is as slow as its parent.
        """

        _refusal: BaseException | None = None

        def get_connection(self, *args: Any, **kwargs: Any) -> Any:
            refusal, self._refusal = self._refusal, None
            if refusal is not None:
                raise refusal
            connection = super().get_connection(*args, **kwargs)
            # Once the cluster is known, a request itself fails with its connection's error.
            if not self.bootstrapped:
                connection.init_future.add_errback(self._note)
            return connection

        def bootstrap(self, *args: Any, **kwargs: Any) -> None:
            try:
                super().bootstrap(*args, **kwargs)
            except BaseException:
                # The admin client raises this from its constructor, so no other code could stop its thread.
                self.close()
                self._net.close()
                raise

        async def _build_transport(self, *args: Any, **kwargs: Any) -> Any:
            transport = await super()._build_transport(*args, **kwargs)
            if hasattr(transport, "_sock_recv"):
                transport._sock_recv = _keep_last_words(transport._sock_recv)
            return transport

        def _note(self, error: BaseException) -> None:
            if is_refusal(error):
                self._refusal = error

    return EagerManager


_Received = tuple[bytes, "Exception | None"]


def _keep_last_words(receive: Callable[[], _Received]) -> Callable[[], _Received]:
    """Return what came before the end of a connection, and the end with the next call.

    A broker sends the reason why it refuses a login, and closes the connection. If both come together, kafka-python
    drops what it has read, so a wrong password looks like a broken connection.
    """
    ends: list[Exception] = []

    def receive_data_first() -> _Received:
        if ends:
            return b"", ends.pop()
        data, end = receive()
        if data and end is not None:
            ends.append(end)
            return data, None
        return data, end

    return receive_data_first
