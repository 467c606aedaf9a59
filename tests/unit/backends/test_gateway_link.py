"""What a gateway takes from another one: signed by the cluster, whole, and sent just now."""

from dataclasses import replace

import pytest

from server.backends.gateway_link import BadSignature, ForwardedRequest, end_to_end_headers, sign, verify, verify_body

SECRET = b"the secret of all gateways"
REQUEST = ForwardedRequest("POST", "/v1/images?a=b", [], b"body", "key_1", "http 10.0.0.1 8080")
NOW = 1_800_000_000.0


def test_a_signed_request_is_taken() -> None:
    headers = sign(SECRET, REQUEST, REQUEST.target, NOW)
    verify(SECRET, "POST", REQUEST.target, headers, NOW + 50)
    verify_body(headers, b"body")


@pytest.mark.parametrize(
    ("method", "target", "changes", "after_s"),
    [
        ("GET", REQUEST.target, {}, 0),
        ("POST", "/v1/images?a=c", {}, 0),
        ("POST", REQUEST.target, {"x-darkroom-key": "key_2"}, 0),
        ("POST", REQUEST.target, {"x-darkroom-server": "http evil.example 80"}, 0),
        ("POST", REQUEST.target, {"x-darkroom-body": "0" * 64}, 0),
        ("POST", REQUEST.target, {"x-darkroom-sent": "1800000100"}, 100),
        ("POST", REQUEST.target, {"x-darkroom-signature": ""}, 0),
        ("POST", REQUEST.target, {}, 61),
        ("POST", REQUEST.target, {}, -61),
    ],
)
def test_a_changed_or_old_request_is_refused(method: str, target: str, changes: dict[str, str], after_s: float) -> None:
    headers = sign(SECRET, REQUEST, REQUEST.target, NOW) | changes
    with pytest.raises(BadSignature):
        verify(SECRET, method, target, headers, NOW + after_s)


def test_another_cluster_and_another_body_are_refused() -> None:
    headers = sign(SECRET, replace(REQUEST, body=b"mine"), REQUEST.target, NOW)
    with pytest.raises(BadSignature):
        verify(b"another", "POST", REQUEST.target, headers, NOW)
    with pytest.raises(BadSignature):
        verify_body(headers, b"yours")


def test_headers_of_one_connection_are_not_sent_on() -> None:
    sent = [("Host", "a"), ("Connection", "close"), ("Transfer-Encoding", "chunked"), ("X-Keepalive", "1")]
    assert end_to_end_headers(sent) == [("host", "a"), ("x-keepalive", "1")]
