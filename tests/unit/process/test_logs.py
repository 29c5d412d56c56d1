"""What a line of the log says."""

import json
import logging
import sys

import pytest

from pointsman.process.logs import JsonFormatter, TextFormatter


def record(message: str, *arguments: object, error: Exception | None = None, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("pointsman.x").makeRecord(
        "pointsman.x", logging.WARNING, __file__, 1, message, arguments, None, extra=extra
    )
    if error is not None:
        try:
            raise error
        except type(error):
            made.exc_info = sys.exc_info()
    return made


def test_a_json_line_has_the_message_the_constant_fields_and_the_records_own() -> None:
    text = JsonFormatter({"service": "ns/chat"}).format(record("%d tokens", 3, worker="w-0", unknown=None))
    line = json.loads(text)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "pointsman.x",
        "message": "3 tokens",
        "service": "ns/chat",
        "worker": "w-0",
    }


def test_a_text_line_shows_the_same_fields() -> None:
    text = TextFormatter({"service": "ns/chat"}).format(record("%d tokens", 3, worker="w-0", why="no node", old=""))
    assert text.endswith('WARNING pointsman.x 3 tokens service=ns/chat worker=w-0 why="no node" old=""')


@pytest.mark.parametrize("formatter", [JsonFormatter({}), TextFormatter({})])
def test_an_exception_is_shown_with_its_place(formatter: logging.Formatter) -> None:
    text = formatter.format(record("broken", error=ValueError("seven is odd")))
    assert "seven is odd" in text
    assert "test_logs.py" in text


@pytest.mark.parametrize("value", ["a\x1b[2Jx", 'x="y"', "a=b", "a b", ""])
def test_a_value_that_could_be_misread_is_quoted_and_says_nothing_to_a_terminal(value: str) -> None:
    record = logging.makeLogRecord({"name": "pointsman", "msg": "refused", "user": value})
    line = TextFormatter({}).format(record)
    assert line.isprintable()
    assert json.loads(line.partition("user=")[2]) == value
