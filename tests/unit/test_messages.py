"""Every text that a user reads keeps the rules of docs/reference/style.md, and none is overlooked."""

import ast
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from messages import found
from messages.examples import NoExample, facts, modules, rendered_messages
from messages.found import ROOT, Message
from messages.plan_messages import plan_messages
from messages.style import WORDS_A_SENTENCE, faults
from pointsman.operator.core import actions as act
from pointsman.operator.core.elastic.plans import SetInstances
from pointsman.operator.core.ledger import PoolChange
from pointsman.planner.core.messages import decisions, encoders, layouts


@pytest.fixture(scope="module")
def every() -> Sequence[Message]:
    return found.all_messages()


def test_every_text_keeps_the_rules(every: Sequence[Message]) -> None:
    wrong = {f"{each.where}: {each.text}: {fault}" for each in every for fault in faults(each.text, each.kind)}
    assert wrong == set()


@pytest.mark.parametrize("of", [layouts, encoders, decisions], ids=lambda of: of.__name__.rpartition(".")[2])
def test_whole_messages_of_plans_have_every_sentence_in_them(of: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()

    def noted(name: str, function: Callable[..., str]) -> Callable[..., str]:
        return lambda *facts: used.add(name) or function(*facts)  # type: ignore[func-returns-value]

    functions = {
        name: function
        for name, function in inspect.getmembers(of, inspect.isfunction)
        if function.__module__ == of.__name__ and not name.startswith("_")
    }
    for name, function in functions.items():
        monkeypatch.setattr(of, name, noted(name, function))
    every = list(plan_messages())
    alone = {name for name in functions if name in ALONE}  # sentences that are a message
    assert used == set(functions) - alone
    changes = {message.split(" from ")[0] for message in every if " from " in message.split(": ")[0]}
    assert changes >= {"Switch roles", "Scale out", "Scale in", "Switch roles and scale out", "Scale encode workers"}


ALONE = {
    "too_few_intervals",
    "unreadable_gateways",
    "metrics_stale",
    "first_reading",
}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"{'Switch roles from 1P2D to 2P1D ' * 5}: too few prefill workers. 3P1D is needed.", "first sentence"),
        ("3P1D needed, 1P2D there; the policy allows 2P1D; " * 4, "words in a sentence"),
        ("1 prefill workers do not start.", "singular with 1"),
        ("2 decode worker is needed.", "plural with 2"),
        ("3 decode worker(s) that do not start", "singular and plural"),
    ],
)
def test_a_chain_and_a_wrong_number_are_faults_of_a_plan(text: str, fault: str) -> None:
    assert [each for each in faults(text, "plan") if fault in each]


def test_texts_of_each_kind_and_room_are_found(every: Sequence[Message]) -> None:
    kinds = {each.kind for each in every}
    assert kinds == {
        "message", "plan", "log", "error", "cli", "description", "admission", "values", "alert", "dashboard", "chart",
        "text",
    }  # fmt: skip
    rooms = {each.where.partition("/")[0] for each in every if "/src/" in each.where}
    assert rooms == set(found.ROOMS)


def test_every_message_is_rendered_with_example_facts() -> None:
    rendered = {where for where, _ in rendered_messages()}
    written = {
        f"{room}.core.messages.{path.stem}.{name}"
        for room in ("operator", "planner")
        for path in (ROOT / room / "src/pointsman" / room / "core/messages").glob("*.py")
        if path.stem != "words"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if (name := name_of_message(node)) is not None and not name.startswith("_")
    }
    assert written == rendered
    assert len(written) > 230


def name_of_message(node: ast.stmt) -> str | None:
    match node:
        case ast.FunctionDef(name=name):
            return name
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str())):
            return name
    return None


def test_a_message_with_unknown_facts_needs_an_example() -> None:
    with pytest.raises(NoExample, match="parameter colour"):
        facts("pointsman.operator.core.messages.plans.painted", "colour", str)


def test_every_action_reports_its_outcome_by_a_message() -> None:
    kinds = [kind for kind in vars(act).values() if inspect.isclass(kind) and issubclass(kind, act.Action)]
    silent = {kind.__name__ for kind in [*kinds, SetInstances] if "outcome" not in vars(kind)}
    assert silent == {"WorkerAction", "WritePool"}, "a base; one whose changes report theirs"
    assert "outcome" in vars(PoolChange)


def test_message_modules_are_those_that_are_read() -> None:
    read = {Path(inspect.getfile(module)) for module in modules()}
    rooms = (ROOT / room / "src" for room in found.ROOMS)
    written = {path for room in rooms for path in room.rglob("*.py") if found.is_message_module(path)}
    assert {path for path in written if path.stem not in ("__init__", "words")} == read


CORES = [ROOT / "operator/src/pointsman/operator/core", ROOT / "planner/src/pointsman/planner/core"]
EXPLAIN = [ROOT / f"planner/src/pointsman/planner/explain/{name}.py" for name in ("explanation", "group")]
OUTSIDE = [path for core in CORES for path in sorted(core.rglob("*.py")) if not found.is_message_module(path)]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_core_builds_a_text_outside_of_its_messages(path: Path) -> None:
    assert list(found.built_outside(path)) == []


@pytest.mark.parametrize("path", EXPLAIN, ids=lambda path: path.stem)
def test_an_explanation_builds_no_sentence_outside_of_the_messages(path: Path) -> None:
    assert [each.text for each in found.of_source(path, path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('sentence = f"{summary}: {ready.message}"', 1),
        ('message = f"{decision.message}; {need}"', 1),
        ('message=f"{change}. {sentence}"', 1),
        ('change = f"{before} -> {after}"', 1),
        ('sentence = "; ".join(filter(None, words))', 1),
        ('reason = "the policy allows no more"', 1),
        ('raise PrometheusFailed(f"{where}: key {key} is empty")', 0),
        ('selector = ",".join(f"{key}={value}" for key, value in labels)', 0),
        ('where = f"{namespace}/{name}"', 0),
    ],
)
def test_a_text_that_is_built_elsewhere_is_found(source: str, count: int, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(source, encoding="utf-8")
    assert len(list(found.built_outside(module))) == count


def test_a_log_text_is_the_same_each_time_and_what_differs_is_in_fields() -> None:
    calls = [
        (f"{path.relative_to(ROOT)}:{call.lineno}", call)
        for room in found.ROOMS
        for path in (ROOT / room / "src").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and is_call_of_log(call)
    ]
    assert len(calls) > 150
    assert [where for where, call in calls if not is_fact_with_fields(call)] == []


LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def is_call_of_log(call: ast.Call) -> bool:
    of = call.func
    return (
        isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name) and of.value.id == "log" and of.attr in LEVELS
    )


def is_fact_with_fields(call: ast.Call) -> bool:
    texts = call.args[1:] if isinstance(call.func, ast.Attribute) and call.func.attr == "log" else call.args
    facts = [text.body, text.orelse] if len(texts) == 1 and isinstance(text := texts[0], ast.IfExp) else texts
    return len(texts) == 1 and all(
        isinstance(fact, ast.Constant) and not {"%", "{"} & set(str(fact.value)) for fact in facts
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a gateway holds back what finds 1058 prompt tokens ahead of it", "what"),
        ("decides; what, says 'pointsman explain chat'", "says"),
        ("Decode is wanted, nobody serves", "nobody"),
        ("the last look failed", "look"),
        ("its role is not proved yet", "proved"),
        ("I would go to 7P6D", "I"),
        (" ".join(["word"] * (WORDS_A_SENTENCE + 1)), "26 words"),
    ],
)
def test_private_dialect_is_a_fault(text: str, fault: str) -> None:
    assert [each for each in faults(text) if fault in each]


def test_a_long_description_is_a_fault() -> None:
    long = "Pending prompt tokens. " * 10
    assert [each for each in faults(long, "description") if "characters" in each]
    assert list(faults(long, "message")) == []


def test_logs_errors_help_and_parts_of_formats_are_found() -> None:
    source = '''
def run(parser, log, name):
    """A docstring says nothing to users."""
    log.info("service=%s evaluation failed again", name)
    parser.add_argument("--x", help="the file to be written")
    raise ValueError(f"{name} is not a valid name")
'''
    texts = {each.kind: each.text for each in found.of_source(ROOT / "cli/src/x.py", source)}
    assert texts == {
        "log": "service=… evaluation failed again",
        "cli": "the file to be written",
        "error": "… is not a valid name",
    }
