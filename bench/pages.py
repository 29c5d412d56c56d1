"""Renders ``bench/templates``: pages and pictures are templates with the prose, and Python gives them figures."""

import re
import statistics
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

REPORTS = Path(__file__).parents[1] / "docs" / "reports"
TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **figures: Any) -> str:
    """A template with these figures. Raises jinja2.UndefinedError for a figure that is missing."""
    return _environment().get_template(template).render(figures)


def write(page: str, text: str) -> Path:
    """Write ``docs/reports/<page>``, with single blank lines."""
    path = REPORTS / page
    path.write_text(re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n")
    return path


def write_picture(name: str, drawn: str) -> str:
    """Write ``docs/reports/pictures/<name>``; returns the name."""
    (REPORTS / "pictures" / name).write_text(drawn)
    return name


def texts(name: str) -> Any:
    """The texts of ``bench/templates/<name>.yaml``."""
    return yaml.safe_load((TEMPLATES / f"{name}.yaml").read_text())


def spread(values: Iterable[float], form: str = ".3f") -> str:
    """The mean, and in brackets the smallest and the largest of several values."""
    found = [*values]
    mean = f"{statistics.mean(found):{form}}"
    return mean if len(found) == 1 else f"{mean} ({min(found):{form}}–{max(found):{form}})"


def _percent(value: float | None, form: str = ".1f") -> str:
    return "" if value is None else f"{100 * value:{form}} %"


def _number(count: float) -> str:
    """With a space between thousands."""
    return f"{count:,}".replace(",", " ")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=lambda name: (name or "").endswith(".svg"),
    )  # fmt: skip
    made.filters |= {
        "f": format, "mean": statistics.mean, "median": statistics.median, "spread": spread, "percent": _percent,
        "number": _number, "escaped": lambda text: text.replace("_", r"\_"),
    }  # fmt: skip
    return made
