"""The elastic engine on real processes: one model's tokens however its instances regroup, and what a death costs."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.elastic.programs import run
from pointsman.local.engine.environment import EngineEnvironment

KINDS = ("grouped-tied-llama3-sharded", "plain", "linear")
KV_BYTES_OF_PLAIN = 2 * 3 * 8 * 16 * 4
"""Of a token of the model "plain": keys and values of 3 layers with 8 heads of 16 numbers in float32."""


@pytest.fixture(scope="module")
def models(engine_environment: EngineEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each kind."""
    folder = tmp_path_factory.mktemp("elastic-models")
    run(engine_environment, "models", str(folder))
    return folder


def moved_as_planned(found: dict[str, Any]) -> bool:
    """Whether growing and shrinking moved nothing, and hand-overs the KV of their tokens and what belongs to it.

    What belongs to it, on each shard: the position of each token (8 bytes), and an acknowledgement (1 byte).
    """
    handed = found["handed_tokens"] * found["token_bytes"]
    handed += found["width"] * (8 * found["handed_tokens"] + found["hand_overs"])
    return bool(found["moved_bytes"] == {"prefill": 0, "decode": 0, "move": handed})


@pytest.mark.parametrize("kind", KINDS)
def test_however_instances_regroup_the_tokens_are_those_of_one_model_and_no_kv_is_lost_or_doubled(
    engine_environment: EngineEnvironment, models: Path, kind: str
) -> None:
    for found in run(engine_environment, "regroupings", str(models / kind), "float32", "1", "gloo", "1", "2"):
        assert found["degrees"] == [1, 2, 3, 4]
        assert found["requests"] >= 10
        assert found["undecided"] == 0, "the draw leaves no tie that rounding could decide"
        assert (found["wrong_tokens"], found["misplaced"], found["slots_leaked"]) == (0, 0, 0), found
        assert found["shrank"] and found["grew"] and found["handed_tokens"], "the draw does all of it"
        assert moved_as_planned(found), found


@pytest.mark.verify
@pytest.mark.verify_elastic
def test_the_tokens_of_a_thousand_prompts_are_those_of_one_model(
    engine_environment: EngineEnvironment, models: Path, findings: dict[str, object]
) -> None:
    """In float32 rounding could decide only between logits that lie as close as it is large: none of them does."""
    how, seeds = ("float32", "1", "gloo"), [str(seed) for seed in range(100, 125)]
    found = [
        each
        for kind in KINDS
        for each in run(engine_environment, "regroupings", str(models / kind), *how, *seeds, limit_s=900)
    ]
    apart = sorted(logits for each in found for logits in each["logits_apart"])
    total = {
        of: sum(each[of] for each in found)
        for of in (
            "requests", "tokens", "shrank", "grew", "hand_overs", "wrong_tokens", "undecided", "misplaced",
            "slots_leaked",
        )
    }  # fmt: skip
    findings |= {
        **total,
        "degrees": sorted({degree for each in found for degree in each["degrees"]}),
        "moved_bytes_of_scalings": sum(each["moved_bytes"][of] for each in found for of in ("prefill", "decode")),
        "two_best_logits_apart": {
            "least": apart[0], "1_percent": apart[len(apart) // 100], "median": apart[len(apart) // 2],
        },
        "float32_changes_logits_by": max(each["rounding"] for each in found),
    }  # fmt: skip
    assert total["requests"] >= 1000
    assert min(total["shrank"], total["grew"], total["hand_overs"]) > 20
    assert all(moved_as_planned(each) for each in found)
    assert (total["wrong_tokens"], total["misplaced"], total["slots_leaked"]) == (0, 0, 0)
    assert total["undecided"] == 0, "no two best logits lie as close as what float32 changes them by"


def test_a_model_of_the_hub_is_found_by_its_name(
    engine_environment: EngineEnvironment, models: Path, tmp_path: Path
) -> None:
    """In the cache of huggingface_hub, which asks nobody when it is told to be offline."""
    repository = tmp_path / "hub" / "models--tests--linear"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    shutil.copytree(models / "linear", repository / "snapshots" / "abc")
    (found,) = run(
        engine_environment,
        "regroupings",
        "tests/linear",
        "float32",
        "1",
        "gloo",
        "1",
        HF_HOME=str(tmp_path),
        HF_HUB_OFFLINE="1",
    )
    assert (found["wrong_tokens"], found["misplaced"], found["slots_leaked"]) == (0, 0, 0), found


def test_an_instance_of_another_architecture_ends_and_names_it(
    engine_environment: EngineEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen2ForCausalLM"]}))
    settings = {"NAMESPACE": "n", "SERVICE_UID": "u", "WORKER": "i0", "MODEL": str(tmp_path)}
    settings |= {"CONTROL_TOKEN": "a-token-of-the-tests", "BIND_HOST": "127.0.0.1", "BIND_PORT": "0"}
    ended = subprocess.run(
        [str(engine_environment.python), "-m", "pointsman.workers.elastic.instance"],
        env=engine_environment.variables() | {f"POINTSMAN_{name}": value for name, value in settings.items()},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode != 0
    sentence = "architectures is ['Qwen2ForCausalLM']; the elastic engine computes LlamaForCausalLM"
    assert sentence in ended.stdout + ended.stderr


def test_a_model_that_is_cut_over_two_processes_of_each_instance_gives_the_same_tokens(
    engine_environment: EngineEnvironment, models: Path
) -> None:
    (found,) = run(engine_environment, "regroupings", str(models / KINDS[0]), "float32", "2", "gloo", "1")
    assert found["degrees"] == [1, 2, 3, 4]
    assert (found["wrong_tokens"], found["misplaced"], found["slots_leaked"]) == (0, 0, 0), found
    assert moved_as_planned(found), found


@pytest.mark.parametrize("width", ["1", pytest.param("2", marks=[pytest.mark.verify, pytest.mark.verify_elastic])])
def test_in_bfloat16_tokens_are_as_good_as_transformers_own(
    engine_environment: EngineEnvironment, models: Path, width: str
) -> None:
    for found in run(engine_environment, "regroupings", str(models / KINDS[0]), "bfloat16", width, "gloo", "1"):
        assert found["transformers_lost"] > 0, "bfloat16 chooses other tokens, or this shows nothing"
        assert found["lost"] < 0.4, found  # standard deviations; docs/use/elastic.md says so
        assert (found["misplaced"], found["slots_leaked"]) == (0, 0), found


def test_a_prefill_in_pieces_and_batches_is_the_same(engine_environment: EngineEnvironment, models: Path) -> None:
    found = run(engine_environment, "pieces", str(models / KINDS[0]))
    assert found["apart"] < 1e-4, "as far as float32 rounds"
    assert found["in_order"]
    assert found["free"] == 3000 - (700 + 1200 + 300 + 5)


def test_on_a_gpu_all_tensors_of_an_operation_lie_there(engine_environment: EngineEnvironment, models: Path) -> None:
    found = run(engine_environment, "devices", str(models / KINDS[0]))
    assert len(found) == 4
    assert all(each == ["cuda:0 torch.float32"] for each in found.values()), found


def test_groups_choose_nccl_alike_and_its_stand_in_has_its_rules(engine_environment: EngineEnvironment) -> None:
    found = run(engine_environment, "nccl_groups")
    each, shared, without, none, earlier = found["transports"].values()
    assert each == ["nccl", "nccl"]
    assert shared == without == none == earlier == ["gloo", "gloo"]
    watched, with_earlier = found["watched"].values()
    assert watched == [True, True]
    assert with_earlier == [False, False], "a member that sends no beats is not taken for dead"
    assert found["bindings"] == found["bound"], "of the pinned torch, which is a CUDA build"
    assert found["constructor"] == "made" or "no GPUs found" in found["constructor"], "the arguments are right"
    assert found["listening"] == ["127.0.0.1"], "NCCL itself, on the interface of that address"
    ports = found["listening of a group and its store"]
    assert len(ports) >= 3 and {*ports} == {"127.0.0.1"}, "gloo of both members and the store, on that address alone"
    assert found["crossing"] == [2.0, 0.0]
    assert found["sums"] == [9.0, 9.0]
    assert found["not coalesced"] == ["hangs", "hangs"]
    assert found["hasty reader"] == [True, True]
    assert found["changer"] == ["AssertionError", "AssertionError"]
    assert found["only the first"] == ["GroupBroken", "ended"], "a member that is never told stops nobody for ever"
    outcomes, noticed_s = found["closes"]
    assert outcomes == ["GroupBroken", "closed"]
    assert noticed_s < 3


def test_no_thread_is_in_gloo_when_a_process_with_a_group_over_nccl_ends(
    engine_environment: EngineEnvironment,
) -> None:
    """It would abort the process."""
    assert run(engine_environment, "process_end") == {"watching": 0}


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("call", "NCCL has not ended a communicator"),
        ("abort", "NCCL has not ended a communicator"),
        ("settle", "the GPU has not finished after the end of a communicator"),
    ],
)
def test_a_process_ends_whose_communicator_does_not(
    engine_environment: EngineEnvironment, how: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(subprocess.CalledProcessError) as ended:
        run(engine_environment, "stuck_nccl", how, limit_s=60)
    assert ended.value.returncode == 1
    assert f'process ends seconds=1.0 why="{why}"' in capfd.readouterr().err + (ended.value.stderr or "")


def test_no_group_connects_while_a_communicator_is_ending(engine_environment: EngineEnvironment) -> None:
    found = run(engine_environment, "stuck_nccl", "slow", limit_s=60)
    assert found == ["connects", "abort begins", "abort ends", "connects"]


def test_transfers_that_cross_hang_over_nccl_unless_they_begin_together(
    engine_environment: EngineEnvironment, models: Path
) -> None:
    found = run(engine_environment, "hasty", str(models / "plain"))
    assert found["hasty"] == {"prefill": "hangs", "decode": "hangs"}
    assert set(found["strict"].values()) == {"ends"}


@pytest.mark.verify
@pytest.mark.verify_elastic
@pytest.mark.parametrize("width", ["1", "2"])
def test_over_nccls_rules_the_tokens_are_those_of_one_model(
    engine_environment: EngineEnvironment, models: Path, width: str
) -> None:
    (found,) = run(engine_environment, "regroupings", str(models / KINDS[0]), "float32", width, "strict", "1")
    assert found["degrees"] == [1, 2, 3, 4]
    assert (found["wrong_tokens"], found["misplaced"], found["slots_leaked"]) == (0, 0, 0), found
    assert moved_as_planned(found), found


@pytest.mark.verify
@pytest.mark.verify_elastic
@pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="no GPU; make bench-elastic-gpu runs the same program")
def test_on_gpus_the_tokens_are_those_of_one_model(engine_environment: EngineEnvironment, models: Path) -> None:
    """Over NCCL in groups whose members have a GPU each: of four instances, on one GPU none, on two some."""
    (found,) = run(engine_environment, "regroupings", str(models / KINDS[0]), "float32", "1", "gpu", "1")
    assert (found["wrong_tokens"], found["misplaced"], found["slots_leaked"]) == (0, 0, 0), found


def test_shards_stay_in_step_whatever_happens_to_one_of_them(
    engine_environment: EngineEnvironment, models: Path
) -> None:
    found = run(engine_environment, "shards", str(models / KINDS[0]))
    fine = {"agree": True, "why": [None, None]}
    assert found["late"] == fine, "one that computes for long breaks nothing"
    for name in ("broken", "unsampled"):
        assert found[name]["agree"], found
        assert None not in found[name]["why"], "what breaks on one shard breaks on both"
        assert found[name]["after"] == fine, found
    assert found["no_memory"]["agree"]
    assert "the GPU's memory does not suffice for it: out of memory" in found["no_memory"]["why"]
    assert found["no_memory"]["after"] == fine
    assert found["unsampled"]["held"] == [True, True], "a step that broke leaves no KV"
    assert found["unsampled"]["same"]
    assert found["stands_still"] < 3
    few, many = found["keys"]
    assert few == many, "meetings leave nothing in the store but those of the last"


def test_a_member_that_dies_while_the_others_connect_is_noticed_in_time(
    engine_environment: EngineEnvironment,
) -> None:
    found = run(engine_environment, "meetings")
    assert len(found) == 5
    for each in found:
        assert each["died"], each
        assert None not in each["seconds"], each
        assert max(each["seconds"]) < 3, each


@pytest.mark.parametrize(
    "transport", ["gloo", pytest.param("strict", marks=[pytest.mark.verify, pytest.mark.verify_elastic])]
)
def test_a_member_that_dies_or_stands_still_is_noticed_by_all_and_its_requests_are_computed_again(
    engine_environment: EngineEnvironment, models: Path, transport: str
) -> None:
    found: list[dict[str, Any]]
    *found, taking = run(engine_environment, "deaths", str(models / "plain"), "1", transport)
    assert [each["phase"] for each in found] == ["joining", "prefill", "decode", "frozen"]
    for each in found:
        assert each["noticed_by"] == 2, each
        assert each["noticed_s"] < 3, each
        assert each["slots_leaked"] == 0, each
        assert each["same_tokens_after"], each
    assert (taking["noticed_by"], taking["slots_leaked"]) == (1, 0), taking
    assert taking["noticed_s"] < 3, taking
    assert taking["moved_bytes"]["move"] > 90 * KV_BYTES_OF_PLAIN, "what was sent in vain is counted too"
    assert taking["moved_bytes"]["prefill"] == taking["moved_bytes"]["decode"] == 0


def test_what_is_exchanged_travels_while_a_member_attends_over_the_keys_at_hand(
    engine_environment: EngineEnvironment, models: Path
) -> None:
    found = run(engine_environment, "overlap", str(models / "plain"))
    hop = ["begin 2", "attend", "await send", "await receive"]
    assert found["prefill"] == [[*hop, "attend"]] * 2, "the stripe at hand, while it passes on and the next one comes"
    master, holder = found["decode"]
    assert master == ["begin 1", "attend", "begin 1", "await receive", "await send"]
    assert holder == ["begin 1", "await receive", "attend", "begin 1", "await send"]


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(2), id="2 seeds"),
        pytest.param(range(25), marks=[pytest.mark.verify, pytest.mark.verify_elastic], id="25 seeds"),
    ],
)
def test_an_instance_killed_while_its_group_shrinks_or_grows_costs_only_its_own_requests(
    engine_environment: EngineEnvironment, models: Path, seeds: range, findings: dict[str, object]
) -> None:
    found = run(
        engine_environment, "scaling_deaths", str(models / "plain"), "gloo", "killed", *map(str, seeds), limit_s=900
    )
    assert len(found) == 2 * len(seeds)
    for each in found:
        assert each["died"], each
        # Once the last of six exchanges has begun, the others may get all that they need, and end the iteration.
        assert each["noticed_by"] == 2 or each["killed"][1:] == [6, True], each
        assert each["noticed_s"] < 3, each
        assert (each["recomputed"], each["went_on"]) == (1, 2), each
        assert each["slots_leaked"] == [0, 0], each
        assert each["same_tokens"], each
    if len(seeds) > 2:
        findings |= {
            "deaths": {way: sum(each["direction"] == way for each in found) for way in ("down", "up")},
            "points": len({(each["direction"], *each["killed"]) for each in found}),
            "deaths_that_came_too_late_to_break_all": sum(each["noticed_by"] < 2 for each in found),
            "requests_recomputed": sum(each["recomputed"] for each in found),
            "requests_that_went_on": sum(each["went_on"] for each in found),
            "points_with_wrong_tokens": sum(not each["same_tokens"] for each in found),
            "slots_leaked": sum(sum(map(abs, each["slots_leaked"])) for each in found),
        }


def test_tokens_are_drawn_as_often_as_asked_for_and_the_same_again(engine_environment: EngineEnvironment) -> None:
    found = run(engine_environment, "draws")
    rounding = 0.03  # of 4 000 draws
    assert found["plain"] == pytest.approx(found["softmax"], abs=rounding)
    assert found["cold"] == pytest.approx(found["cold_softmax"], abs=rounding)
    two = found["softmax"][1] + found["softmax"][4]
    of_two = [0, found["softmax"][1] / two, 0, 0, found["softmax"][4] / two]
    assert found["top_k"] == pytest.approx(of_two, abs=rounding)
    assert found["top_p"] == pytest.approx(of_two, abs=rounding), "the first alone has .43, both .70"
    assert found["likeliest_only"] == found["greedy"] == [0, 1, 0, 0, 0]
    assert found["again"]
    assert found["beside"], "whatever is drawn for other requests at the same time"
    assert found["other_seed"]
    token_id, logprob, likeliest = found["told"]
    logprobs = found["log_softmax"]
    assert (token_id, logprob) == (1, pytest.approx(logprobs[1]))
    assert [token for token, _ in likeliest] == [1, 4]
    assert [value for _, value in likeliest] == pytest.approx([logprobs[1], logprobs[4]])
