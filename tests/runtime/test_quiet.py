"""Logging that is quiet for a while, and afterwards as before."""

from __future__ import annotations

import logging

import pytest

from ptq4vit_onnx.runtime.quiet import quiet_logging


def test_named_loggers_are_quiet_and_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    with quiet_logging("noisy"):
        logging.getLogger("noisy").warning("advice")
        logging.getLogger("other").warning("said")
        logging.getLogger("noisy").error("broken")
    logging.getLogger("noisy").warning("again")
    assert caplog.messages == ["said", "broken", "again"]


def test_without_names_all_are_quiet_and_logging_is_not_set_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quiet_logging():
        logging.getLogger("any").warning("advice")
    assert caplog.messages == []
    monkeypatch.setattr(logging.root, "handlers", [])
    with quiet_logging():
        logging.warning("advice")  # adds a handler to the root logger
        assert logging.root.handlers
    assert logging.root.handlers == []


@pytest.mark.parametrize("disabled", [logging.NOTSET, logging.INFO, logging.CRITICAL])
def test_levels_are_as_before_also_nested_and_after_an_error(disabled: int) -> None:
    noisy = logging.getLogger("noisy")
    noisy.setLevel(logging.DEBUG)
    logging.disable(disabled)
    try:
        with (
            pytest.raises(ZeroDivisionError),
            quiet_logging("noisy"),
            quiet_logging(),
            quiet_logging("noisy", level=50),
        ):
            assert noisy.level == 50 and logging.root.manager.disable >= max(disabled, logging.WARNING)
            _ = 1 // 0
        assert (noisy.level, logging.root.manager.disable) == (logging.DEBUG, disabled)
    finally:
        logging.disable(logging.NOTSET)
        noisy.setLevel(logging.NOTSET)
