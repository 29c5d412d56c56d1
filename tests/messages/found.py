"""Where the texts are: message functions, literals of the code, custom resources, chart, alerts and dashboards."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from messages.examples import rendered_messages
from messages.plan_messages import plan_messages

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("operator", "planner", "gateway", "workers", "kube", "local", "process", "serving", "crds", "cli")
PLACEHOLDER: Final = "…"
_LOGS: Final = ("debug", "info", "warning", "error", "exception", "critical")
_WORDS: Final = re.compile(r"[A-Za-z]{2,}")
# Other languages inside of strings: PromQL, shell, SQL-like selectors, HTML, JavaScript, regular expressions.
_CODE: Final = re.compile(
    r"[{}]\s*[\w\"]+\s*:|\brate\(|\bsum\(|\bby \(|label_replace|</|/>|\\[dswb(]|=>|;$|\bself\.|==|\[\["
)


@dataclass(frozen=True)
class Message:
    """``kind``: message (of one function), plan (a whole message), log, error, cli, admission, description, chart,
    alert, dashboard, values, text."""

    kind: str
    where: str
    text: str


def all_messages() -> list[Message]:
    """Every message, in a fixed order."""
    found = [*functions(), *plans(), *literals(), *resources(), *values(), *alerts(), *dashboards(), *templates()]
    return sorted(found, key=lambda each: (each.kind, each.where, each.text))


def functions() -> Iterator[Message]:
    """Of each message module, its constants, and its functions with example facts."""
    for where, text in rendered_messages():
        yield Message("message", where, text)


def plans() -> Iterator[Message]:
    """Whole messages of plans."""
    for text in sorted(set(plan_messages())):
        yield Message("plan", "plans", text)


def literals() -> Iterator[Message]:
    """Texts in the code, outside of message modules: logs, errors, help, and whatever else is a sentence."""
    for room in ROOMS:
        for path in sorted((ROOT / room / "src").rglob("*.py")):
            if not is_message_module(path):
                yield from of_source(path, path.read_text(encoding="utf-8"))


def is_message_module(path: Path) -> bool:
    """Its texts are rendered by ``functions``."""
    return path.parent.name == "messages"


def of_source(path: Path, source: str) -> Iterator[Message]:
    """The texts of one module."""
    tree = ast.parse(source)
    parents = {id(child): parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(tree):
        parent = parents.get(id(node))
        text = text_of(node)
        if text is None or isinstance(parent, ast.Expr | ast.JoinedStr | ast.FormattedValue) or not is_prose(text):
            continue
        yield Message(_kind(node, parents), f"{path.relative_to(ROOT)}:{node.lineno}", text)  # type: ignore[attr-defined]


def text_of(node: ast.AST) -> str | None:
    """A string, with a placeholder for each part that is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(\(\w+\))?[-+#0 ]*\d*(\.\d+)?[srdifg]", PLACEHOLDER, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else PLACEHOLDER for v in node.values)
    return None


def is_prose(text: str) -> bool:
    """Three words or more, and no code."""
    return len(_WORDS.findall(text)) > 2 and " " in text.strip() and not _CODE.search(text)


def _kind(node: ast.AST, parents: Mapping[int, ast.AST]) -> str:
    child, parent = node, parents.get(id(node))
    while isinstance(parent, ast.expr | ast.keyword):
        if isinstance(parent, ast.keyword) and parent.arg == "description":
            return "description"
        if isinstance(parent, ast.keyword) and parent.arg in ("help", "epilog"):
            return "cli"
        if isinstance(parent, ast.Call) and _is_log(parent) and parent.args[:1] == [child]:
            return "log"
        if isinstance(parent, ast.Call) and isinstance(parents.get(id(parent)), ast.Raise):
            return "error"
        child, parent = parent, parents.get(id(parent))
    return "text"


def _is_log(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _LOGS


def resources() -> Iterator[Message]:
    """What ``kubectl explain`` shows, and what admission answers."""
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        for version in yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]:
            yield from _of_schema(path.stem, version["schema"]["openAPIV3Schema"])


def _of_schema(where: str, schema: Mapping[str, Any]) -> Iterator[Message]:
    if "description" in schema:
        yield Message("description", where, schema["description"])
    for rule in schema.get("x-kubernetes-validations", ()):
        if "message" in rule:
            yield Message("admission", where, rule["message"])
        if "messageExpression" in rule:
            template = rule["messageExpression"].partition("'.format(")[0].removeprefix("'").replace("\\'", "'")
            yield Message("admission", where, template.replace("%s", PLACEHOLDER))
    for name, below in (schema.get("properties") or {}).items():
        yield from _of_schema(f"{where}.{name}", below)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from _of_schema(where, schema[key])


def values() -> Iterator[Message]:
    """The comments of values.yaml: those of successive lines are one."""
    block: list[str] = []
    lines = (ROOT / "charts/pointsman/values.yaml").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, ""], start=1):
        code, _, comment = line.partition("# ")
        if code.strip() or not comment:
            if block:
                yield Message("values", f"values.yaml:{number - 1}", " ".join(block))
            block = []
            if comment and code.strip():
                yield Message("values", f"values.yaml:{number}", comment)
        else:
            block.append(comment.strip())


def alerts() -> Iterator[Message]:
    """Their annotations."""
    text = (ROOT / "charts/pointsman/files/alerts.yaml").read_text(encoding="utf-8")
    for group in yaml.safe_load(text)["groups"]:
        for rule in group["rules"]:
            for name, annotation in rule.get("annotations", {}).items():
                if not annotation.startswith("http"):
                    yield Message("alert", f"{rule['alert']}.{name}", re.sub(r"{{.*?}}", PLACEHOLDER, annotation))


def dashboards() -> Iterator[Message]:
    """Titles and descriptions of dashboards, panels and variables."""
    for path in sorted((ROOT / "charts/pointsman/files/dashboards").glob("*.json")):
        yield from _of_dashboard(path.stem, json.loads(path.read_text(encoding="utf-8")))


def _of_dashboard(where: str, item: object) -> Iterator[Message]:
    if isinstance(item, Mapping):
        for key, below in item.items():
            if key in ("title", "description") and isinstance(below, str) and below:
                yield Message("dashboard", where, below)
            else:
                yield from _of_dashboard(where, below)
    elif isinstance(item, list):
        for below in item:
            yield from _of_dashboard(where, below)


def templates() -> Iterator[Message]:
    """What helm prints: refusals of values, and the notes after an installation."""
    folder = ROOT / "charts/pointsman/templates"
    for path in sorted(folder.iterdir()):
        source = path.read_text(encoding="utf-8")
        for text in re.findall(r'fail\s+\(?(?:printf\s+)?"((?:[^"\\]|\\.)*)"', source):
            yield Message("chart", path.name, re.sub(r"%[svdq]", PLACEHOLDER, text))
    for line in (folder / "NOTES.txt").read_text(encoding="utf-8").splitlines():
        if is_prose(line) and not line.startswith(("  ", "{{")):
            yield Message("chart", "NOTES.txt", re.sub(r"{{.*?}}", PLACEHOLDER, line))


_OTHER_LANGUAGES: Final = ("nats_config.py", "prometheus_vector.py")  # NATS' configuration, PromQL
_SEPARATOR: Final = re.compile(r"[;:.,] | -> | and ")


def built_outside(path: Path) -> Iterator[str]:
    """Sentences, and texts put together of others, that a module of a core builds itself.

    Not: the text of an exception in its ``raise`` statement, a ``__repr__``, key material, and the description of a
    constant of ``tuning``, which stands beside it.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parents = {id(child): parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in () if path.name in _OTHER_LANGUAGES else ast.walk(tree):
        if _builds(node, parents) and not any(map(_is_exempt, _around(node, parents))):
            yield f"line {node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]


def _builds(node: ast.AST, parents: Mapping[int, ast.AST]) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
        return bool(_SEPARATOR.search(text_of(node.func.value) or ""))
    text = text_of(node)
    if text is None or isinstance(parents.get(id(node)), ast.Expr | ast.JoinedStr | ast.FormattedValue):
        return False
    return is_prose(text) or (isinstance(node, ast.JoinedStr) and bool(_SEPARATOR.search(text)))


def _around(node: ast.AST, parents: Mapping[int, ast.AST]) -> Iterator[ast.AST]:
    while (parent := parents.get(id(node))) is not None:
        yield (node := parent)


def _is_exempt(around: ast.AST) -> bool:
    if isinstance(around, ast.FunctionDef):
        return around.name in ("__repr__", "_keyed")
    if isinstance(around, ast.Call):
        called = around.func
        return isinstance(called, ast.Name) and called.id in ("_constant", "_keyed")
    return isinstance(around, ast.Raise)
