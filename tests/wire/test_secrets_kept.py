"""Keys and secrets are compared in constant time, and are in no line of the log at any level."""

from __future__ import annotations

import hmac
import logging

import grpc
import pytest
from fake_node import FakeNode
from grpc_caller import serving
from litestar.testing import TestClient

from thread_service.settings import Settings
from thread_service.wire.api_key import is_granted
from thread_service.wire.http import create_app
from thread_service.wire.secret import SECRET_METADATA, Stack

KEY = "k3y-that-nobody-may-read"
WRONG = ["", KEY[:-1], f"{KEY}x", KEY.swapcase(), "é", "x" * len(KEY)]


@pytest.mark.parametrize("wrong", WRONG)
def test_every_comparison_is_in_constant_time(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    compared = []

    def recorded(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return compare_digest(first, second)

    compare_digest = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", recorded)
    if wrong:
        assert not is_granted(f"Bearer {wrong}", KEY.encode())
        assert compared == [(wrong.encode(), KEY.encode())]
    assert is_granted(f"Bearer {KEY}", KEY.encode())
    compared.clear()
    assert not Stack(KEY).knows(wrong)
    assert Stack(KEY).knows(KEY)
    assert compared == [(wrong.encode(), KEY.encode()), (KEY.encode(), KEY.encode())]


def test_no_key_and_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        with serving(FakeNode(), api_key=KEY) as caller:
            for given in (KEY, f"{KEY}x"):
                metadata = (("authorization", f"Bearer {given}"),)
                if given == KEY:
                    caller.call("ThreadUpdate/Stats", metadata=metadata)
                else:
                    error = caller.refusal("ThreadUpdate/Stats", metadata=metadata)
                    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
                    assert KEY not in str(error.details())
        for settings, stack, header in (
            (Settings(api_key=KEY), None, "authorization"),
            (Settings(), Stack(KEY), SECRET_METADATA),
        ):
            with TestClient(create_app(FakeNode(), settings, stack=stack), base_url="http://127.0.0.1") as client:
                for given in (KEY, f"{KEY}x", f"Bearer {KEY}", f"Basic {KEY}"):
                    for path in ("/v1/stats", "/v1/nothing", "/metrics"):
                        assert KEY not in client.post(path, headers={header: given}).text
        logging.getLogger("thread_service").debug("%r %r", Settings(api_key=KEY), Stack(KEY))
    assert len(caplog.records) > 1
    assert KEY not in caplog.text
