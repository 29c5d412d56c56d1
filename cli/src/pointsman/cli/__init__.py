"""The ``pointsman`` command: collects the subcommands of the installed rooms.

A room offers a subcommand through the entry-point group ``pointsman.commands``: the name is the word a user types, the
object a callable ``(argv: list[str]) -> int`` whose first docstring line is shown in ``pointsman --help``.
"""

import sys
from importlib.metadata import entry_points, version

from pointsman.process.logs import configure_logs_of_a_guest

GROUP = "pointsman.commands"


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns the process's exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["--version"]:
        print(f"pointsman {version('pointsman-cli')}")
        return 0
    commands = {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name)}
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(_help({name: entry.load().__doc__ or "" for name, entry in commands.items()}))
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in commands:
        known = ", ".join(commands) or "none installed"
        print(f"pointsman: there is no command '{name}' (known: {known}); see 'pointsman --help'", file=sys.stderr)
        return 2
    configure_logs_of_a_guest("warning", "text", {})
    result: int = commands[name].load()(rest)
    return result


def _help(summaries: dict[str, str]) -> str:
    lines = ["usage: pointsman COMMAND [ARGUMENTS]", "", "commands:"]
    lines += [f"  {name:<18} {doc.strip().splitlines()[0] if doc.strip() else ''}" for name, doc in summaries.items()]
    lines += [
        "",
        "'pointsman COMMAND --help' explains one command, with examples.",
        "'pointsman --version' prints the version.",
    ]
    return "\n".join(lines)
