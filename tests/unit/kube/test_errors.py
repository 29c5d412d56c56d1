"""Answers of the API server become typed errors."""

import json
from typing import Any

import pytest

from pointsman.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    NotServed,
    ServerFault,
    Throttled,
    Unauthorized,
    error_from_answer,
    error_from_status,
)


def status(code: int, reason: str, message: str = "why", **details: Any) -> bytes:
    return json.dumps(
        {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    ).encode()


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (418, "Teapot", ApiError),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", Throttled),
        (500, "InternalError", ServerFault),
        (504, "Timeout", ServerFault),
    ],
)
def test_each_status_has_its_class_and_keeps_the_servers_sentence(
    code: int, reason: str, expected: type[ApiError]
) -> None:
    error = error_from_answer(code, status(code, reason), request="GET /x")
    assert type(error) is expected
    assert (error.status, error.reason, str(error)) == (code, reason, "why")


def test_an_invalid_object_names_its_fields() -> None:
    body = status(
        422, "Invalid", causes=[{"reason": "FieldValueInvalid", "message": "must be >= 0", "field": "spec.replicas"}]
    )
    error = error_from_answer(422, body, request="POST /x")
    assert [(cause.field, cause.message) for cause in error.causes] == [("spec.replicas", "must be >= 0")]


def test_a_kind_that_is_not_installed_is_told_from_an_object_that_is_not_there() -> None:
    assert type(error_from_answer(404, b"404 page not found\n", request="GET /x")) is NotServed
    assert type(error_from_answer(404, status(404, "NotFound"), request="GET /x")) is NotFound


def test_an_answer_without_a_status_object_says_what_was_asked() -> None:
    error = error_from_answer(502, b"<html>bad gateway</html>", request="GET /api/v1/pods")
    assert type(error) is ServerFault
    assert str(error) == "GET /api/v1/pods: 502 <html>bad gateway</html>"


def test_the_wait_the_server_asks_for_comes_from_the_header_or_the_body() -> None:
    body = status(429, "TooManyRequests", retryAfterSeconds=7)
    assert error_from_answer(429, body, request="GET /x").retry_after_s == 7
    assert error_from_answer(429, body, request="GET /x", retry_after="2").retry_after_s == 2
    assert error_from_answer(429, b"", request="GET /x", retry_after="soon").retry_after_s is None


def test_a_namespace_that_goes_away_is_recognised() -> None:
    body = status(403, "Forbidden", causes=[{"reason": "NamespaceTerminating", "message": "…", "field": "…"}])
    error = error_from_answer(403, body, request="POST /x")
    assert isinstance(error, Forbidden)
    assert error.namespace_terminating


def test_the_error_event_of_a_watch_is_typed_by_its_code() -> None:
    assert type(error_from_status({"kind": "Status", "code": 410, "reason": "Expired"})) is Gone
    assert type(error_from_status({"kind": "Status"})) is ServerFault
