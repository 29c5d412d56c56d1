"""From histograms to requests: what must be exact is exact, what is drawn lies in its bucket."""

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol import metrics as named
from pointsman.planner.core.metrics.scrape_pair import Histogram, Page
from pointsman.planner.errors import TraceError
from pointsman.planner.prometheus_access import Access
from pointsman.planner.replay import record_command
from pointsman.planner.replay.prometheus_history import Scrapes
from pointsman.planner.replay.record_access import access
from pointsman.planner.replay.recording import draw, recording

BOUNDS = (64.0, 256.0, 1024.0, 4096.0, float("inf"))


def histogram(values: list[float]) -> Histogram:
    return Histogram(BOUNDS, tuple(float(sum(value <= bound for value in values)) for bound in BOUNDS), sum(values))


@given(st.lists(st.integers(2, 20_000), min_size=1, max_size=200), st.integers(0, 10_000))
def test_drawn_lengths_have_the_buckets_of_what_was_seen(values: list[int], seed: int) -> None:
    seen = histogram([float(value) for value in values])
    drawn = draw(seen, random.Random(seed))
    assert len(drawn) == len(values)
    for low, high in zip((0.0, *BOUNDS), BOUNDS, strict=False):
        assert sum(low < value <= high for value in drawn) == sum(low < value <= high for value in values)


@given(st.lists(st.integers(10, 4000), min_size=20, max_size=200), st.integers(0, 100))
def test_drawn_lengths_have_the_sum_of_what_was_seen(values: list[int], seed: int) -> None:
    drawn = draw(histogram([float(value) for value in values]), random.Random(seed))
    assert sum(drawn) == pytest.approx(sum(values), rel=0.03, abs=len(values))


def page(arrivals: float, prompts: list[float], outputs: list[float]) -> Page:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {named.GATEWAY_ARRIVALS.name: {(): arrivals}}
    for metric, values in ((named.GATEWAY_PROMPT_TOKENS, prompts), (named.GATEWAY_OUTPUT_TOKENS, outputs)):
        made = histogram(values)
        found[f"{metric.name}_bucket"] = {
            (("le", str(bound)),): count for bound, count in zip(BOUNDS, made.cumulative, strict=True)
        }
        found[f"{metric.name}_sum"] = {(): made.total}
    return found


def test_every_request_of_every_gateway_is_in_the_trace_within_its_scrapes() -> None:
    one = Scrapes(
        {100.0: page(5, [50] * 5, [9] * 5), 110.0: page(8, [50] * 8, [9] * 8), 120.0: page(8, [50] * 8, [9] * 8)}, None
    )
    two = Scrapes({103.0: page(0, [], []), 113.0: page(4, [900] * 4, [90] * 4)}, None)
    made = recording("chat", {"a": one, "b": two}, seed=1)
    assert len(made.trace) == 3 + 4
    assert made.begin_s == 100.0
    assert made.trace.duration_s <= 13.0
    assert (made.trace.prompt_tokens > 256).sum() == 4
    assert (made.trace.prompt_tokens <= 64).sum() == 3
    assert recording("chat", {"a": one, "b": two}, seed=1).trace.arrival_s.tolist() == made.trace.arrival_s.tolist()


def test_a_restarted_gateway_loses_nothing_and_counts_nothing_twice() -> None:
    scrapes = {100.0: page(50, [50] * 50, [9] * 50), 110.0: page(3, [50] * 3, [9] * 3)}
    assert len(recording("chat", {"a": Scrapes(scrapes, None)}, seed=1).trace) == 3


def test_a_request_that_is_not_answered_yet_gets_a_length_like_the_others() -> None:
    scrapes = {100.0: page(0, [], []), 110.0: page(6, [900] * 6, []), 120.0: page(6, [900] * 6, [90] * 2)}
    made = recording("chat", {"a": Scrapes(scrapes, None)}, seed=1).trace
    assert len(made) == 6
    assert ((made.output_tokens > 64) & (made.output_tokens <= 256)).all()


def test_a_pause_of_the_scrapes_is_said() -> None:
    times = [100.0, 110.0, 120.0, 400.0, 410.0]
    scrapes = {at_s: page(n + 1, [50] * (n + 1), [9] * (n + 1)) for n, at_s in enumerate(times)}
    notes = recording("chat", {"a": Scrapes(scrapes, None)}, seed=1).notes
    assert any("1 gaps" in note and "280 s" in note for note in notes)


def test_a_history_without_requests_is_refused() -> None:
    with pytest.raises(TraceError, match="no request arrived"):
        recording("chat", {}, seed=1)
    nothing = Scrapes({100.0: page(5, [50], [9]), 110.0: page(5, [50], [9])}, None)
    with pytest.raises(TraceError, match="no request arrived"):
        recording("chat", {"a": nothing}, seed=1)


def test_requests_that_were_all_refused_have_no_lengths_and_are_refused() -> None:
    with pytest.raises(TraceError, match="no length is known"):
        recording("chat", {"a": Scrapes({100.0: page(0, [], []), 110.0: page(5, [], [])}, None)}, seed=1)


def recorded(monkeypatch: pytest.MonkeyPatch, out: Path, *targets: Mapping[str, str]) -> int:
    """``pointsman record`` of a Prometheus in which each of these targets counts one more request with each scrape."""
    series: list[dict[str, Any]] = [
        {
            "metric": {"__name__": name, **labels, **target},
            "values": [[1000.0 + 10 * n, f"{counted * n}"] for n in range(6)],
        }
        for target in targets
        for name, labels, counted in (
            (named.GATEWAY_ARRIVALS.name, {"endpoint": "completions"}, 1),
            *((f"{length.name}_bucket", {"le": le}, 1) for length in LENGTHS for le in ("64.0", "+Inf")),
            *((f"{length.name}_sum", {}, 30) for length in LENGTHS),
        )
    ]

    class Server:
        def __init__(self, *_: object, **__: object) -> None:
            self.answers = [series]

        def samples_now(self, *_: object) -> list[dict[str, Any]]:
            return self.answers.pop() if self.answers else []

        def close(self) -> None:
            pass

    monkeypatch.setattr(record_command, "Prometheus", Server)
    return record_command.main(["--prometheus", "http://p:9090", "--service", "chat", "--out", str(out)])


LENGTHS = (named.GATEWAY_PROMPT_TOKENS, named.GATEWAY_OUTPUT_TOKENS)


@pytest.mark.parametrize(
    ("targets", "requests"),
    [
        ([{"pod": "a", "job": "pods", "instance": "1:80"}, {"pod": "b", "job": "pods", "instance": "2:80"}], 10),
        ([{"pod": "a", "job": "pods", "instance": "1:80"}, {"pod": "a", "job": "more", "instance": "1:80"}], 5),
        ([{"job": "static", "instance": "1:80"}], 5),
    ],
    ids=["two gateways", "one that two jobs scrape", "the only target there is"],
)
def test_every_gateway_is_recorded_once(
    targets: list[dict[str, str]], requests: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert recorded(monkeypatch, tmp_path / "made.jsonl", *targets) == 0
    lines = (tmp_path / "made.jsonl").read_text().splitlines()
    assert len([line for line in lines if "prompt_tokens" in json.loads(line)]) == requests


@pytest.mark.parametrize("other", [{}, {"pod": "b"}])
def test_gateways_that_cannot_be_told_apart_are_refused_and_not_left_out(
    other: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = {"job": "static", "instance": "10.0.0.1:8000"}, {"job": "static", "instance": "10.0.0.2:8000", **other}
    assert recorded(monkeypatch, tmp_path / "made.jsonl", *targets) == 2
    words = capsys.readouterr().err
    assert (
        f"{1 if other else 2} of 2 targets have no label 'pod' (e.g. job 'static', instance '10.0.0.1:8000')" in words
    )
    assert not (tmp_path / "made.jsonl").exists()


def accessed(*options: str) -> Access | None:
    return access(record_command.parse(["--prometheus", "http://p:9090", "--service", "c", "--out", "f", *options]))


def test_credentials_and_ca_are_read_from_files(tmp_path: Path) -> None:
    """Not from arguments, which others on the machine can see."""
    token, password, ca = (tmp_path / name for name in ("token", "password", "ca.crt"))
    token.write_text("t0ken\n")
    password.write_text("p:w\n")
    ca.write_text("-----BEGIN\nCERTIFICATE-----\n")
    assert accessed() is None
    assert accessed("--token-file", str(token)) == Access(token="t0ken")
    assert accessed("--user", "u", "--password-file", str(password)) == Access(basic=("u", "p:w"))
    assert accessed("--ca-file", str(ca)) == Access(ca="-----BEGIN\nCERTIFICATE-----")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--user", "u"], "--user is given without --password-file; give both"),
        (["--password-file", "two"], "--password-file is given without --user; give both"),
        (["--token-file", "two", "--user", "u"], "--token-file is given with --user or --password-file; leave one"),
        (["--token-file", "none"], "--token-file none cannot be read: No such file or directory; name a file that can"),
        (["--token-file", "empty"], "--token-file empty is empty; name another file"),
        (["--token-file", "two"], "--token-file two has a line break or a control character; write one line"),
        (["--ca-file", "bytes"], "--ca-file bytes is not UTF-8 text; name another file"),
        (["--ca-file", "two"], "--ca-file has no certificate in PEM; name the file of the CA, as in ca.crt"),
        (["--prometheus", "http://u:p@p:9090", "--token-file", "two"], "--prometheus has a user and further credenti"),
    ],
)
def test_a_mistake_in_the_access_is_said_by_its_option_with_what_would_be_right(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in (("empty", b" \n"), ("two", b"s3cret\nlines"), ("bytes", b"\xff")):
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    arguments = ["--prometheus", "http://p:9090", "--service", "chat", "--out", "trace.jsonl", *options]
    assert record_command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"pointsman record: {said}")
    assert "s3cret" not in error


@pytest.mark.parametrize(
    ("given", "example"),
    [
        ("127.0.0.1:1", "http://127.0.0.1:1"),
        ("prometheus.monitoring.svc/path", "http://prometheus.monitoring.svc/path"),
        ("ftp://p:9090", "http://p:9090"),
        ("u:s3cret@p:9090", "http://***@p:9090"),
        ("http://", "http://localhost:9090"),
        ("", "http://localhost:9090"),
    ],
)
def test_an_address_that_is_no_url_is_refused_with_one_that_is(
    given: str, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        record_command.parse(["--prometheus", given, "--service", "chat", "--out", "trace.jsonl"])
    assert ended.value.code == 2
    assert f"--prometheus: a URL with http:// or https:// is needed, e.g. {example};" in capsys.readouterr().err


def test_where_the_trace_goes_is_looked_at_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        record_command.main(["--prometheus", "http://127.0.0.1:1", "--service", "chat", "--out", "/nope/trace.jsonl"])
    assert ended.value.code == 2
    assert "--out: there is no folder /nope; create it, or name another file" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://p", "HTTPS://p:9090/path", "http://u:p@p:9090", "http://[::1]:9090"])
def test_an_address_of_a_prometheus_is_taken_as_it_is(url: str) -> None:
    assert record_command.parse(["--prometheus", url, "--service", "c", "--out", "f"]).prometheus == url


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (["--last", "1h", "--from", "2026-11-20T09:00+00:00"], "--from: not allowed with argument --last"),
        (
            ["--from", "2026-11-20T09:00+00:00", "--to", "2026-11-20T08:00+00:00"],
            r"--from is 2026-11-\d\dT\S+; a time before 2026-11-\d\dT\S+ \(--to\) is needed",
        ),
    ],
)
def test_times_that_are_no_stretch_are_refused_as_they_were_written(
    times: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--prometheus", "http://p:9090", "--service", "chat", "--out", "trace.jsonl", *times]
    try:
        ended = record_command.main(arguments)
    except SystemExit as error:
        ended = int(error.code or 0)
    assert ended == 2
    assert re.search(said, capsys.readouterr().err)
