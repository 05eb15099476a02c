"""The library's network client, made to take no for an answer.

The library tries a refused login until time runs out, and then only says that it did. A wrong password or certificate
is the author's to mend, so here the broker's own word for it is raised, at once.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import cache
from typing import Any


def open_client(**configs: Any) -> Any:
    """The network client below a KafkaAdminClient (its argument `kafka_client`) that takes no for an answer."""
    from kafka.net.compat import KafkaNetClient
    from kafka.net.selector import NetworkSelector

    net = NetworkSelector(**configs)
    return KafkaNetClient(net=net, manager=_manager_class()(net, **configs), **configs)


def is_refusal(error: BaseException | None) -> bool:
    """Whether the other side, or our own check of it, said no for good: trying again cannot help."""
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
    # kafka-python wraps what the TLS layer says: in a handshake as context, later as argument.
    inner = (error, getattr(error, "__context__", None), *getattr(error, "args", ()))
    reasons = [str(getattr(each, "reason", "")) for each in inner if isinstance(each, ssl.SSLError)]
    marks = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "WRONG_VERSION_NUMBER", "PROTOCOL_VERSION")
    return any(mark in reason for mark in marks for reason in reasons)


@cache
def _manager_class() -> Any:
    from kafka.net.manager import KafkaConnectionManager

    class EagerManager(KafkaConnectionManager):  # type: ignore[misc]
        """kafka-python 3.0 tries a refused login until time runs out, then says only that it did; this one tells why.

        It leans on three inner methods of the library. Where a later version has others, it is as slow as its parent.
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
                # The admin client raises this out of its constructor: nobody else could stop its thread.
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
    """Hand out what came before a connection's end, and the end by the next call.

    A broker says why it refuses a login and hangs up. kafka-python drops what it has read when the end comes with it,
    so that a wrong password looks like a broken line.
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
