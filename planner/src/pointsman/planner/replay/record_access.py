"""Credentials and the CA of a Prometheus, for ``pointsman record``: by options, as a policy has them in a Secret."""

import argparse
import re
from pathlib import Path
from typing import Final

from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.prometheus import Remedies
from pointsman.planner.prometheus_access import Access

REMEDIES: Final = Remedies(
    credentials="give them with --token-file, or with --user and --password-file",
    token="correct the token in --token-file",
    basic="correct --user or the password in --password-file",
    ca="give the CA of its certificate with --ca-file",
    no_pem="--ca-file has no certificate in PEM; name the file of the CA, as in ca.crt",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """To reach a Prometheus that does not answer to everybody."""
    add = parser.add_argument
    add("--token-file", type=Path, metavar="FILE", help="with a bearer token for Prometheus")
    add("--user", type=_user, metavar="NAME", help="of Prometheus, instead of --token-file; needs --password-file")
    add("--password-file", type=Path, metavar="FILE", help="with the password of --user")
    add("--ca-file", type=Path, metavar="FILE", help="CA of Prometheus' certificate, PEM; no other CA is trusted then")


def access(options: argparse.Namespace) -> Access | None:
    """None: neither credentials nor a CA are given.

    No credential is an option itself: others can see the arguments of a process. Raises PrometheusFailed: the option,
    what is wrong, and what would be right.
    """
    token_file, user, password_file = options.token_file, options.user, options.password_file
    if token_file is not None and (user is not None or password_file is not None):
        raise PrometheusFailed("--token-file is given with --user or --password-file; leave one of the two out")
    if (user is None) != (password_file is None):
        given, missing = ("--user", "--password-file") if password_file is None else ("--password-file", "--user")
        raise PrometheusFailed(f"{given} is given without {missing}; give both")
    if (token_file or user) is not None and re.match("https?://[^/]*@", options.prometheus):
        raise PrometheusFailed("--prometheus has a user and further credentials are given; leave one of the two out")
    basic = None if user is None else (user, _line("--password-file", password_file))
    token = None if token_file is None else _line("--token-file", token_file)
    ca = None if options.ca_file is None else _text("--ca-file", options.ca_file)
    return None if token is None and basic is None and ca is None else Access(token, basic, ca)


def _line(option: str, path: Path) -> str:
    text = _text(option, path)
    if not text.isprintable():
        raise PrometheusFailed(f"{option} {path} has a line break or a control character; write one line")
    return text


def _text(option: str, path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise PrometheusFailed(f"{option} {path} cannot be read: {error.strerror}; name a file that can") from None
    except UnicodeDecodeError:
        raise PrometheusFailed(f"{option} {path} is not UTF-8 text; name another file") from None
    if not text:
        raise PrometheusFailed(f"{option} {path} is empty; name another file")
    return text


def _user(text: str) -> str:
    if not text or ":" in text or not text.isprintable():
        raise argparse.ArgumentTypeError(f"'{text}' is not a valid user name: write one without a colon")
    return text
