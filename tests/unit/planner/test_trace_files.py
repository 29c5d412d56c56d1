"""Trace files: three formats, and what each says when a line is wrong."""

import gzip
import json
import lzma
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.errors import TraceError
from pointsman.planner.replay.requests import Arrived, faster, first, superposed, trace_of
from pointsman.planner.replay.trace_files import TimeUnit, TraceFormat, bin_width_s, load_trace, write_trace

TRACES = Path(__file__).parent / "traces"
BENCH_DATA = Path(__file__).parents[3] / "bench" / "data"
MOONCAKE = '{"timestamp": 1000, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 2353]}'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44"
OWN = '{"format": "pointsman-trace", "version": 1, "name": "tuesday", "block_tokens": 256}'


OWN_LINE = '{"arrival_s": 1, "prompt_tokens": 256, "output_tokens": 1, "prefix_blocks": [1]}'


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def test_the_first_requests_of_mooncake_are_read_with_their_prefixes() -> None:
    loaded = load_trace(TRACES / "mooncake.jsonl")
    assert loaded.format is TraceFormat.MOONCAKE
    assert len(loaded.trace) == 60
    assert {6758, 7322, 7236} <= set(loaded.trace.prompt_tokens.tolist())
    assert loaded.trace.prefix_blocks is not None
    lengths = zip(loaded.trace.prompt_tokens, loaded.trace.prefix_blocks, strict=True)
    assert all(len(blocks) == -(-prompt // 512) for prompt, blocks in lengths)


def test_bins_of_mooncake_are_spread_so_that_no_burst_is_left() -> None:
    loaded = load_trace(TRACES / "mooncake.jsonl", seed=3)
    gaps = np.diff(loaded.trace.arrival_s)
    assert (gaps > 0).all()
    assert gaps.max() < 3
    assert any("3 s apart" in note and "seed 3" in note for note in loaded.notes)


def test_the_same_seed_spreads_the_same_way_and_another_does_not() -> None:
    arrivals = [load_trace(TRACES / "mooncake.jsonl", seed=seed).trace.arrival_s.tolist() for seed in (1, 1, 2)]
    assert arrivals[0] == arrivals[1] != arrivals[2]


def test_the_first_requests_of_azure_are_read_at_their_times() -> None:
    loaded = load_trace(TRACES / "azure.csv")
    assert loaded.format is TraceFormat.AZURE
    assert len(loaded.trace) == 100
    assert loaded.trace.prompt_tokens[:2].tolist() == [374, 396]
    assert loaded.trace.arrival_s[:2].tolist() == pytest.approx([0.0, 4.314579], abs=1e-5)
    assert loaded.trace.prefix_blocks is None


def test_the_whole_traces_are_there_with_the_numbers_their_page_states() -> None:
    mooncake = load_trace(BENCH_DATA / "mooncake" / "conversation_trace.jsonl.xz").trace
    azure = load_trace(BENCH_DATA / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.xz").trace
    assert (len(mooncake), len(azure)) == (12_031, 19_366)
    assert (round(mooncake.prompt_tokens.mean()), round(azure.prompt_tokens.mean())) == (12_035, 1_155)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    made = trace_of("tuesday", [Arrived(0.0, 300, 5, (1, 2)), Arrived(1.25, 20, 6)], block_tokens=256)
    write_trace(tmp_path / "t.jsonl", made, {"note": "x"})
    loaded = load_trace(tmp_path / "t.jsonl")
    assert loaded.format is TraceFormat.POINTSMAN
    assert (loaded.trace.name, loaded.trace.block_tokens) == ("tuesday", 256)
    assert loaded.trace.arrival_s.tolist() == [0.0, 1.25]
    assert loaded.trace.prefix_blocks == ((1, 2), ())


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_compressed_file_is_read_as_it_is(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    (tmp_path / "trace").write_bytes(pack(AZURE.encode()))
    assert load_trace(tmp_path / "trace").trace.prompt_tokens.tolist() == [374]


def test_a_cut_compressed_file_is_said_not_crashed(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(gzip.compress(AZURE.encode() * 100)[:60])
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(tmp_path / "trace")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("hello", "TIMESTAMP, ContextTokens, GeneratedTokens is missing"),
        ('{"at": 3}', "line 1: neither 'timestamp' nor 'format' is there"),
        (MOONCAKE + '\n{"timestamp": 2', "line 2: it is no JSON object"),
        (MOONCAKE + "\n[]", "line 2: it is no JSON object but '[]'"),
        (MOONCAKE + "\n" + "[" * 100_000, "line 2: it is no JSON object: maximum recursion depth"),
        (MOONCAKE + '\n\n{"timestamp": 2, "output_length": 3}', "line 3: input_length is missing"),
        (MOONCAKE.replace("1200", '"long"'), "line 1: input_length is 'long'; a whole number of 0 or more"),
        (MOONCAKE.replace("1200", "-1"), "line 1: input_length is -1;"),
        (MOONCAKE.replace("1200", "NaN"), "line 1: input_length is nan;"),
        (
            MOONCAKE.replace("1200", "1e300"),
            "input_length is 1e+300; a whole number of 0 or more, and 1000000000",
        ),
        (MOONCAKE.replace("1200", "9" * 400), "line 1: input_length is 9999"),
        (MOONCAKE.replace(": 1000", ": " + "9" * 400), "line 1: timestamp is 9999"),
        (MOONCAKE.replace(": 1000", ": null"), "line 1: timestamp is None; a number"),
        (MOONCAKE.replace("[46", '["46"'), "line 1: hash_ids is"),
        (
            MOONCAKE.replace("1200", "1024"),
            "hash_ids is [46, 47, 2353], 3 ids; input_length 1024 has 2 at most, one for every 512 tokens; which size "
            "all of its ids are of is not certain: --block-tokens N sets another size, 511 or less",
        ),
        (
            OWN + '\n{"arrival_s": 1, "prompt_tokens": 256, "output_tokens": 1, "prefix_blocks": [1, 2]}',
            "line 2: prefix_blocks is [1, 2], 2 ids; prompt_tokens 256 has 1 at most, one for every 256 tokens; "
            "--block-tokens N sets another size, 255 or less",
        ),
        (
            "[" + MOONCAKE + ",\n" + MOONCAKE + "]",
            "line 1: it is a JSON array; one object a line is needed: jq -c '.[]'",
        ),
        (
            json.dumps(json.loads(MOONCAKE), indent=2),
            "line 1: it is a JSON object over several lines; one object a line",
        ),
        ("{\n" + MOONCAKE[1:], "line 1: it is a JSON object over several lines"),
        (MOONCAKE.replace('"output_length": 52', '"input_length": 52'), "'input_length' is written twice"),
        (
            MOONCAKE + '\n{"session_id": "a", "delay": 100, "input_length": 10, "output_length": 5}',
            "line 2: timestamp is missing: 'delay' counts from an answer that a replay does not have; write a time of "
            "arrival (read as Mooncake JSON lines, timestamp in ms)",
        ),
        (AZURE.replace("Context", "contexttokens,Context"), "has the column ContextTokens 2 times"),
        (AZURE.replace(",", ";"), "is missing in the header 'TIMESTAMP;ContextTokens;GeneratedTokens'"),
        (AZURE + '\n"2023-11-16 18:15:47,1,2', "line 3: it has 1 values, the header names 3"),
        (
            AZURE + "\n0.5,1,2",
            "line 3: TIMESTAMP is '0.5'; a moment such as 2023-11-16 18:15:46.6805900 is needed (read",
        ),
        (AZURE + "\nyesterday,1,2", "line 3: TIMESTAMP is 'yesterday'; a moment such as"),
        (AZURE + "\n2023-11-16 18:15:47,,2", "line 3: ContextTokens is ''; a whole number"),
        (AZURE + "\n2023-11-16 18:15:47,1", "line 3: it has 2 values, the header names 3"),
        (AZURE.splitlines()[0], "it has no request"),
        (OWN.replace("1,", "9,"), "line 1: version is 9; this Pointsman reads version 1"),
        (OWN + '\n{"arrival_s": 1, "prompt_tokens": 2.5, "output_tokens": 1}', "line 2: prompt_tokens is 2.5"),
    ],
)
def test_a_mistake_is_named_with_line_and_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError) as raised:
        load_trace(written(tmp_path, text))
    assert said in str(raised.value)


def mooncake(folder: Path, block_tokens: int, prompts: list[int], *, whole_blocks: bool = False) -> Path:
    """A Mooncake file with an id for every so many tokens of its prompts; ``whole_blocks``: none for a part of one."""
    lines = []
    for number, prompt in enumerate(prompts):
        count = prompt // block_tokens if whole_blocks else -(-prompt // block_tokens)
        ids = [1000 * number + block for block in range(count)]
        lines.append({"timestamp": 700 * number, "input_length": prompt, "output_length": 9, "hash_ids": ids})
    return written(folder, "\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize("whole_blocks", [False, True])
@pytest.mark.parametrize(
    ("block_tokens", "prompts"),
    [
        (16, [817, 40, 5, 16, 2300]),
        (1, [3, 70]),
        (256, [817, 1400, 4100]),
        (64, [100_000]),
        (48, [20, 4817, 96, 3001]),  # no power of two
    ],
)
def test_the_size_of_mooncakes_blocks_is_told_by_the_number_of_ids_and_said(
    tmp_path: Path, block_tokens: int, prompts: list[int], whole_blocks: bool
) -> None:
    loaded = load_trace(mooncake(tmp_path, block_tokens, prompts, whole_blocks=whole_blocks))
    assert loaded.trace.block_tokens == block_tokens
    assert f"stands for {block_tokens} tokens, not for 512, as their number shows" in " ".join(loaded.notes)
    assert loaded.trace.prompt_tokens.tolist() == prompts
    blocks = loaded.trace.prefix_blocks
    assert blocks is not None
    assert len(blocks[0]) == prompts[0] // block_tokens + (not whole_blocks and prompts[0] % block_tokens > 0)


def test_the_size_is_told_by_requests_that_are_not_played_too(tmp_path: Path) -> None:
    lines = mooncake(tmp_path, 16, [700, 4, 20]).read_text().splitlines()
    late = lines[0].replace('"timestamp": 0', '"timestamp": 900000000')
    loaded = load_trace(written(tmp_path, "\n".join([*lines[1:], late])), first_s=1.0)
    assert (len(loaded.trace), loaded.trace.block_tokens) == (2, 16)


def test_blocks_of_512_tokens_are_taken_for_those_without_a_word(tmp_path: Path) -> None:
    loaded = load_trace(mooncake(tmp_path, 512, [817, 40, 9000]))
    assert loaded.trace.block_tokens == 512
    assert not any("stands for" in note for note in loaded.notes)


def test_where_ids_are_those_of_larger_blocks_it_is_said(tmp_path: Path) -> None:
    path = mooncake(tmp_path, 2048, [8170, 400, 90_000])
    loaded = load_trace(path)
    assert loaded.trace.block_tokens == 512  # they may as well be ids of the beginnings of prompts
    assert "as many as blocks of 2048 would: --block-tokens 2048 takes them for those" in " ".join(loaded.notes)
    given = load_trace(path, block_tokens=2048)
    assert given.trace.block_tokens == 2048
    assert not any("stands for" in note for note in given.notes)


def test_ids_of_several_sizes_are_refused_with_the_option_that_says_one(tmp_path: Path) -> None:
    lines = mooncake(tmp_path, 16, [817]).read_text() + "\n" + mooncake(tmp_path, 64, [2000]).read_text()
    with pytest.raises(TraceError, match=r"817 has 2 at most, one for every 512 .* --block-tokens N .* 16 or less"):
        load_trace(written(tmp_path, lines))
    assert load_trace(tmp_path / "trace", block_tokens=16).trace.block_tokens == 16


def test_a_size_that_is_given_is_taken_or_refused_and_never_another(tmp_path: Path) -> None:
    path = mooncake(tmp_path, 16, [817, 40])
    assert load_trace(path, block_tokens=8).trace.block_tokens == 8
    with pytest.raises(TraceError) as raised:
        load_trace(path, block_tokens=32)
    assert str(raised.value).endswith(
        "52 ids; input_length 817 has 26 at most, one for every 32 tokens; "
        "--block-tokens N sets another size, 16 or less"
    )


def test_more_ids_than_tokens_are_of_no_size(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"3 ids; input_length 2 has 1 at most.*; no block size has that many"):
        load_trace(written(tmp_path, MOONCAKE.replace("1200", "2")))


def test_what_a_recording_says_of_its_blocks_is_believed_unless_another_size_is_given(tmp_path: Path) -> None:
    line = '{"arrival_s": 1, "prompt_tokens": 817, "output_tokens": 1, "prefix_blocks": [1, 2, 3, 4]}'
    assert load_trace(written(tmp_path, f"{OWN}\n{line}")).trace.block_tokens == 256
    assert load_trace(tmp_path / "trace", block_tokens=128).trace.block_tokens == 128
    silent = OWN.replace(', "block_tokens": 256', "")
    loaded = load_trace(written(tmp_path, f"{silent}\n{line}"))
    assert loaded.trace.block_tokens == 256
    assert any("stands for 256 tokens, not for 512" in note for note in loaded.notes)


def test_bytes_that_are_no_text_are_said(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(TraceError, match="it is no UTF-8 text"):
        load_trace(tmp_path / "trace")


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        load_trace(tmp_path / "nothing")


def test_a_request_without_an_answer_counts_as_one_token_and_is_said(tmp_path: Path) -> None:
    loaded = load_trace(written(tmp_path, AZURE.replace(",44", ",0")))
    assert loaded.trace.output_tokens.tolist() == [1]
    assert any("requests with a length of 0: 1;" in note for note in loaded.notes)


@pytest.mark.parametrize("name", ["azure.csv", "mooncake.jsonl"])
def test_the_first_seconds_are_the_same_whether_or_not_the_rest_was_read(name: str) -> None:
    whole, part = (first(load_trace(TRACES / name, 3, first_s).trace, 9.0) for first_s in (None, 9.0))
    assert part.arrival_s.tolist() == whole.arrival_s.tolist()
    assert part.prefix_blocks == whole.prefix_blocks


def test_of_a_long_file_only_its_beginning_is_kept_wherever_that_stands(tmp_path: Path) -> None:
    moments = [7000, 100, 90_000, 0, 50, 800, 86_400]
    lines = [json.dumps({"timestamp": 1000 * at_s, "input_length": at_s + 1, "output_length": 9}) for at_s in moments]
    loaded = load_trace(written(tmp_path, "\n".join(lines)), first_s=100.0)
    assert loaded.trace.prompt_tokens.tolist() == [1, 51, 101]


def test_ids_that_are_null_are_not_known(tmp_path: Path) -> None:
    without = re.sub(r"\[46.*\]", "null", MOONCAKE)
    assert load_trace(written(tmp_path, without)).trace.prefix_blocks is None


def test_unordered_lines_are_put_in_order(tmp_path: Path) -> None:
    later = MOONCAKE.replace("1000", "5000").replace("1200", "1199")
    loaded = load_trace(written(tmp_path, f"{later}\n{MOONCAKE}"))
    assert loaded.trace.prompt_tokens.tolist() == [1200, 1199]
    assert loaded.trace.arrival_s.tolist() == [0.0, 4.0]


def test_sorting_is_said_and_only_where_it_was_needed(tmp_path: Path) -> None:
    later = MOONCAKE.replace("1000", "5000")
    mixed = load_trace(written(tmp_path, f"{later}\n{MOONCAKE}\n{later}"))
    assert "requests after a later one: 1; all are sorted by their time of arrival" in mixed.notes
    ordered = load_trace(written(tmp_path, f"{MOONCAKE}\n{later}"))
    assert not any("sorted" in note for note in ordered.notes)


def test_a_line_of_millions_of_ids_is_refused_in_a_line(tmp_path: Path) -> None:
    ids = ", ".join(map(str, range(300_000)))
    with pytest.raises(TraceError, match="300000 ids; input_length 1200 has 3 at most") as raised:
        load_trace(written(tmp_path, MOONCAKE.replace("46, 47, 2353", ids)))
    assert len(str(raised.value)) < 400


def test_real_time_stamps_are_not_taken_for_bins() -> None:
    assert bin_width_s([0.0, 0.013, 0.4, 0.4, 1.7]) is None
    assert bin_width_s([5.0, 5.0, 5.0]) is None  # one burst, no bins
    assert bin_width_s([0.0] * 3 + [2.0] * 4 + [4.0] * 2) == 2.0


def test_bins_may_be_empty_and_bursts_of_a_batch_job_are_none() -> None:
    empty = [stamp for stamp in range(0, 300, 3) for _ in range(2) if stamp % 4 == 0 or stamp % 21 == 0]
    assert bin_width_s([stamp / 10 for stamp in empty]) == 0.3
    assert bin_width_s([float(at) for at in (0, 3600, 10_000) for _ in range(100)]) is None
    assert bin_width_s([at for at in (0.0, 31.2, 40.9, 77.0) for _ in range(100)]) is None
    assert bin_width_s([float(at) for at in (0, 3600, 7200) for _ in range(100)]) is None


def test_a_trace_is_made_faster_cut_and_superposed() -> None:
    made = trace_of("t", [Arrived(float(at), 10 + at, 5, (at,)) for at in range(10)])
    assert faster(made, 2).arrival_s.tolist() == [at / 2 for at in range(10)]
    assert len(first(made, 5)) == 5
    twice = superposed(made, 2)
    assert len(twice) == 20
    assert (np.diff(twice.arrival_s) >= 0).all()
    assert twice.duration_s <= made.duration_s
    assert sorted(twice.prompt_tokens.tolist()) == sorted(made.prompt_tokens.tolist() * 2)
    assert twice.prefix_blocks is not None
    assert len({blocks[0] for blocks in twice.prefix_blocks}) == 20  # no prefix is shared between copies
    with pytest.raises(TraceError, match="no request arrives in the first 0 s"):
        first(made, 0)


def test_headers_of_another_case_or_with_a_mark_of_windows_are_read(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(b"\xef\xbb\xbf" + AZURE.lower().replace("\n", "\r\n").encode())
    assert load_trace(tmp_path / "trace").trace.prompt_tokens.tolist() == [374]


# --- times that cannot be ---


def timed(folder: Path, times: Sequence[float], field: str = "timestamp") -> Path:
    """A Mooncake file (or a recording) with a request at each of these times."""
    length = ("input_length", "output_length") if field == "timestamp" else ("prompt_tokens", "output_tokens")
    lines = [json.dumps({field: time, length[0]: 100, length[1]: 10}) for time in times]
    return written(folder, "\n".join(lines if field == "timestamp" else [OWN, *lines]))


MINUTE_S = [0.5 * number for number in range(120)]  # a request each half second, in seconds
DAYS = "no request arrives for 19675.9 days after 0 s"


@pytest.mark.parametrize(
    ("times", "field", "said"),
    [
        (MINUTE_S, "timestamp", "120 requests in 0.0595 s are 2017 requests/s (read as Mooncake JSON lines, timestamp"),
        (
            [time_s * 1000 for time_s in MINUTE_S], "arrival_s",
            "120 requests in 16.5 h are one in 8.3 min (read as a Pointsman recording, arrival_s in s)",
        ),
        ([0, *(1.7e12 + 500 * number for number in range(120))], "timestamp", DAYS),
        ([*(500 * number for number in range(120)), 1.7e12], "timestamp", "100% of the trace: a time stamp is wrong"),
        (
            [500.0 * number + (0 if number < 60 else 4e7) for number in range(120)], "timestamp",
            "no request arrives for 11.1 h after 29.5 s, which is 100% of the trace",
        ),
        ([3] * 10, "timestamp", "all 10 requests have the same time"),
        ([0, 2678400000], "timestamp", "no request arrives for 31.0 days after 0 s"),
    ],
)  # fmt: skip
def test_times_that_cannot_be_are_refused_with_the_format_and_what_would_help(
    tmp_path: Path, times: list[float], field: str, said: str
) -> None:
    path = timed(tmp_path, times, field)
    with pytest.raises(TraceError) as raised:
        load_trace(path)
    assert said in str(raised.value)
    assert str(raised.value).endswith("; --time-unit s|ms|us|ns sets another unit, --accept-times replays it as it is")
    assert len(load_trace(path, accept_times=True).trace) == len(times)


def test_another_unit_is_read_as_it_is_said(tmp_path: Path) -> None:
    seconds = load_trace(timed(tmp_path, MINUTE_S), time_unit=TimeUnit.S).trace
    micro = load_trace(timed(tmp_path, [time_s * 1e6 for time_s in MINUTE_S], "arrival_s"), time_unit=TimeUnit.US).trace
    assert seconds.arrival_s.tolist() == micro.arrival_s.tolist() == MINUTE_S
    with pytest.raises(TraceError, match="--time-unit is of numbers; an Azure CSV has moments"):
        load_trace(written(tmp_path, AZURE), time_unit=TimeUnit.S)


@pytest.mark.parametrize("per_s", [1 / 45, 1.0, 73.0, 250.0])
def test_times_of_real_services_are_taken(tmp_path: Path, per_s: float) -> None:
    assert len(load_trace(timed(tmp_path, [1000 * number / per_s for number in range(200)])).trace) == 200


def test_a_burst_and_a_quiet_night_are_taken(tmp_path: Path) -> None:
    day = [*range(0, 3_600_000, 5_000), *[3_600_000] * 300, *range(20_000_000, 60_000_000, 5_000)]
    assert len(load_trace(timed(tmp_path, day)).trace) == len(day)


PARTS = st.sampled_from(
    [
        *(b"[", b"{", b"}", b'"', b",", b":", b"\n", b"\r\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"null", b"true"),
        *(b"NaN", b"Infinity", b"-1", b"1e400", b"9" * 5000, b"'", b"\\u0000", b"\x1f\x8b", b"BZh", b"0001-01-01"),
    ]
)


@given(st.data())
def test_a_damaged_trace_is_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    files = ["\n".join([MOONCAKE] * 3), "\n".join([AZURE, *AZURE.splitlines()[1:]]), OWN + "\n" + OWN_LINE]
    content = bytearray(data.draw(st.sampled_from(files)).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        until = min(at + data.draw(st.sampled_from([0, 0, 1, 5])), len(content))
        content[at:until] = data.draw(PARTS | st.binary(min_size=1, max_size=3))
    if data.draw(st.booleans()):
        packed = gzip.compress(content) if data.draw(st.booleans()) else lzma.compress(content)
        content = bytearray(packed)
        del content[data.draw(st.integers(0, len(content))) :]
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content)
    try:
        load_trace(path)
    except TraceError as error:
        assert str(path) in str(error)
