"""Policy files: the same document as in a cluster, with or without its envelope, and mistakes named."""

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.errors import PolicyFileError
from pointsman.planner.replay.policy_files import load_policy

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "policies").glob("*.yaml"))
BARE = "objectives: {ttftMs: 1500, tpotMs: 40}\nbudget: {maxGpus: 8}\n"
WHOLE = (
    "apiVersion: pointsman.dev/v1alpha1\nkind: PlannerPolicy\nmetadata: {name: chat}\n"
    "spec:\n  objectives: {ttftMs: 1500, tpotMs: 40}\n  budget: {maxGpus: 8}\n"
)

BOMB = "".join(f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n" for before, after in pairwise("abcdefg"))
LIST = "apiVersion: v1\nkind: List\nitems:\n- " + WHOLE.replace("\n", "\n  ")


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_there_are_examples_for_four_kinds_of_service() -> None:
    assert {path.stem for path in EXAMPLES} == {"batch", "chat", "code", "long-context"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_read_and_names_a_shipped_table(path: Path) -> None:
    policy = load_policy(path)
    assert policy.name == path.stem
    assert policy.spec.performance.table is not None


def test_the_envelope_makes_no_difference(tmp_path: Path) -> None:
    bare, whole = load_policy(written(tmp_path, BARE)), load_policy(written(tmp_path, WHOLE))
    assert bare.spec == whole.spec
    assert (bare.name, whole.name) == ("mine", "chat")


@pytest.mark.parametrize(
    "content",
    [
        LIST.encode(),
        LIST.replace("kind: List", "kind: PlannerPolicyList").encode(),
        ("# first\n---\n---\n" + WHOLE + "---\n").encode(),
        WHOLE.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + WHOLE.encode(),
        WHOLE.encode("utf-16"),
        json.dumps(yaml.safe_load(WHOLE), indent="\t").encode(),
        b'{"apiVersion": "v1", "kind": "ConfigMap"}\n' + json.dumps(yaml.safe_load(WHOLE)).encode(),
        (b"{objectives: {ttftMs: 1500, tpotMs: 40}, budget: {maxGpus: 8}}"),
        WHOLE.replace("1500", "1.5e3").replace("8}", "8.0}").encode(),
        (WHOLE + "  actions:\n  forecast: null\n").encode(),
        (WHOLE + "status: {observedGeneration: 3}\n").encode(),
        WHOLE.replace(
            "{name: chat}", "{name: chat, creationTimestamp: null, labels: {a: b}, managedFields: [{}]}"
        ).encode(),
        ("x: &o {ttftMs: 1500, tpotMs: 40}\nkind: ConfigMap\n---\n" + WHOLE).encode(),
        WHOLE.replace("{ttftMs: 1500, tpotMs: 40}", "{<<: {ttftMs: 9, tpotMs: 40}, ttftMs: 1500}").encode(),
    ],
)
def test_what_kubectl_applies_is_read_alike(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(content)
    assert load_policy(path).spec == load_policy(written(tmp_path, WHOLE)).spec


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (WHOLE.replace("chat", "größe").encode("latin-1"), "it is no UTF-8 text: byte 75 (line 3) is not"),
        (b"\xff\xfe" + WHOLE.encode(), "not an object"),
        (b"\x00\x01\x02", "it is no YAML"),
        (gzip.compress(WHOLE.encode()), "it is no UTF-8 text"),
    ],
)
def test_what_is_no_text_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(content)
    with pytest.raises(PolicyFileError, match=re.escape(said)):
        load_policy(path)


TOKENS = st.sampled_from(
    [
        *(b"{{ .Values.x }}", b"{{- end }}", b"---\n", b"%YAML 9.9\n", b"&a ", b"*a", b"<<: ", b"? ", b"- ", b"="),
        *(
            b"!!python/object:os.system",
            b"!!timestamp ",
            b"!!bool ",
            b"!!float ",
            b"!!int ",
            b"!!set ",
            b"\t",
            b"\xff",
            b"\x00",
            b"\xef\xbb\xbf",
            b"'",
            b'"',
            b"[",
            b"}",
        ),
        *(b"null", b"1e999", b"2026-13-01"),
    ]
)


@given(st.data())
def test_a_damaged_file_is_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(data.draw(st.sampled_from([WHOLE, BARE, LIST, json.dumps(yaml.safe_load(WHOLE))])).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        until = min(at + data.draw(st.sampled_from([0, 0, 1, 5])), len(content))
        content[at:until] = data.draw(TOKENS | st.binary(min_size=1, max_size=3))
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes(content)
    try:
        load_policy(path)
    except PolicyFileError as error:
        assert str(error).startswith(str(path))


def test_a_service_in_the_same_file_is_passed_over(tmp_path: Path) -> None:
    both = "apiVersion: pointsman.dev/v1alpha1\nkind: LLMService\nmetadata: {name: chat}\n---\n" + WHOLE
    assert load_policy(written(tmp_path, both)).spec.budget.max_gpus == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BARE.replace("ttftMs", "ttfMs"), "objectives.ttfMs: there is no such field; did you mean ttftMs?"),
        (
            BARE + "actions: {roleSwitch: {minDwellSecond: 9}}\n",
            "minDwellSecond: there is no such field; known here: enabled, max",
        ),
        (BARE + "histori: {}\n", "histori: there is no such field; known here: actions, approvals"),
        (WHOLE.replace("budget", "bugdet"), "spec.bugdet: there is no such field; did you mean budget?"),
        (BARE.replace("1500", "soon"), "objectives.ttftMs: 'soon' is written"),
        (BARE + "budget: {maxGpus: 9}\n", "'budget' is written twice"),
        (BARE + "  nonsense", "it is no YAML"),
        (
            BARE.replace("1500", "2026-13-01"),
            "objectives.ttftMs: '2026-13-01' is written; input should be a valid number",
        ),
        (BARE.replace("1500", "[" * 3000), "it is nested too deeply"),
        ("", "it holds no PlannerPolicy; one is needed"),
        ("# only a comment\n---\n", "it holds no PlannerPolicy; one is needed"),
        ("kind: LLMService\n", "it holds no PlannerPolicy (but no apiVersion LLMService); one is needed"),
        (WHOLE.replace("pointsman.dev/", "example.com/"), "no PlannerPolicy (but example.com/v1alpha1 PlannerPolicy)"),
        (WHOLE.replace("v1alpha1", "v1"), "apiVersion: 'pointsman.dev/v1' is written; pointsman.dev/v1alpha1 is right"),
        (BARE.replace("8", "{{ .Values.maxGpus }}"), "line 2, column 20: a key is not a word but a list or an object"),
        (BARE.replace("8", "{{ .Values.maxGpus }}"), "Helm template: render it first, with 'helm template'"),
        (BARE.replace("8", "'{{ .Values.maxGpus }}'"), "Helm template: render it first, with 'helm template'"),
        (
            "{{- if .Values.planner }}\n" + WHOLE + "{{- end }}\n",
            "Helm template: render it first, with 'helm template'",
        ),
        (BARE.replace("1500", "'1500'"), "objectives.ttftMs: '1500' is written; input should be a valid number"),
        (BARE.replace("8", "true"), "budget.maxGpus: True is written; input should be a valid integer"),
        (BARE.replace("1500", ".nan"), "nan is no number that JSON has"),
        (BARE.replace("1500", "1e999"), "inf is no number that JSON has"),
        (BARE.replace("1500", "9" * 5000), "it is no YAML"),
        (BARE.replace("1500", "!!timestamp soon"), "it is no YAML"),
        (BARE.replace("1500", "!!bool soon"), "it is no YAML"),
        ("a: &a [*a]\n", "it is nested too deeply"),
        ("a: &a [1,1,1,1,1,1,1,1,1,1]\n" + BOMB, "aliases counted as often as they are used"),
        ("- " + BARE.replace("\n", "\n  "), "not an object; kubectl takes several as 'kind: List'"),
        ("just words", "a document in it is the text 'just words', not an object"),
        ("? [a, b]\n: 1\n", "a key is not a word but a list or an object"),
        ('{"budget": {"maxGpus": 8}, "budget": 1}', "'budget' is written twice"),
        (WHOLE + "---\n" + WHOLE, "2 policies"),
    ],
)
def test_a_mistake_is_named_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PolicyFileError) as raised:
        load_policy(written(tmp_path, text))
    assert said in str(raised.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="No such file"):
        load_policy(tmp_path / "nothing.yaml")


def test_a_variant_changes_one_field_and_nothing_else(tmp_path: Path) -> None:
    policy = load_policy(written(tmp_path, WHOLE))
    changed = policy.variant("budget.maxGpus", "12")
    switching = policy.variant("actions.roleSwitch.enabled", "false")
    assert (changed.spec.budget.max_gpus, policy.spec.budget.max_gpus) == (12, 8)
    assert changed.spec.objectives == policy.spec.objectives
    assert switching.spec.actions.role_switch.enabled is False
    with pytest.raises(PolicyFileError, match=r"budget.maxGpu: there is no such field; did you mean maxGpus\?"):
        policy.variant("budget.maxGpu", "12")
    with pytest.raises(PolicyFileError, match="maxGpus has no fields"):
        policy.variant("budget.maxGpus.x", "12")
    with pytest.raises(PolicyFileError, match=r"budget.maxGpus: '\[12': it is no YAML"):
        policy.variant("budget.maxGpus", "[12")
