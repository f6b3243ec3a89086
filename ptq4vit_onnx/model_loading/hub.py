"""Whether the hub can be reached, and its cache where it cannot."""

from __future__ import annotations

import os
import socket
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager

from ptq4vit_onnx.runtime.quiet import quiet_logging

_TIMEOUT_SECONDS = 5.0


@contextmanager
def preferring_cache() -> Iterator[None]:
    """While it is open and the hub cannot be reached, its client reads its cache; else it would retry for a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    with quiet_logging("huggingface_hub"):
        if not hub_reachable():
            constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            if before != constants.HF_HUB_OFFLINE:
                constants.HF_HUB_OFFLINE = before
                _forget_offline_sessions()


def _forget_offline_sessions() -> None:
    """Clients before 1.0 keep HTTP sessions, and one that was made offline stays offline."""
    from huggingface_hub import utils

    getattr(utils, "reset_sessions", lambda: None)()


def hub_reachable() -> bool:
    from huggingface_hub import constants

    return reachable(constants.ENDPOINT)


def reachable(address: str) -> bool:
    """Whether a server answers. Behind a proxy a direct connection tells nothing, so it is assumed to."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    url = urllib.parse.urlsplit(address)
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        socket.create_connection((url.hostname or "", port), _TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True
