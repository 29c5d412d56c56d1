"""The image store, a container's log, pod addresses."""

from pathlib import Path

import pytest

from pointsman.local.errors import ImageStoreFailed, NodeFailed
from pointsman.local.node.container_log import LogReader, last_lines, tail
from pointsman.local.node.images import Image, ImageStore, without_tag, write_images
from pointsman.local.node.pod_addresses import PodAddresses


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("nats:2.15", "nats"),
        ("nats", "nats"),
        ("registry:5000/team/worker", "registry:5000/team/worker"),
        ("registry:5000/team/worker:1.0", "registry:5000/team/worker"),
        ("worker:1.0@sha256:abc", "worker"),
    ],
)
def test_an_image_name_without_its_tag(name: str, bare: str) -> None:
    assert without_tag(name) == bare


def test_a_name_without_tag_stands_for_every_tag_and_an_exact_one_wins(tmp_path: Path) -> None:
    file = tmp_path / "images.yaml"
    write_images(file, {"worker": Image(entrypoint=("any",)), "worker:2": Image(entrypoint=("two",))})
    store = ImageStore(file)

    found = [store.get(name) for name in ("worker:1", "worker:2", "other")]

    assert [image and image.entrypoint for image in found] == [("any",), ("two",), None]
    assert store.names() == ["worker", "worker:2"]


def test_a_store_is_read_again_when_it_changed(tmp_path: Path) -> None:
    file = tmp_path / "images.yaml"
    write_images(file, {})
    store = ImageStore(file)
    assert store.get("late") is None

    write_images(file, {"late": Image(start_seconds=45, path=(Path("/bin"),))})

    assert store.get("late") == Image(start_seconds=45, path=(Path("/bin"),))


def test_a_wrong_store_names_field_and_file(tmp_path: Path) -> None:
    file = tmp_path / "images.yaml"
    file.write_text("images: {worker: {startSecond: 3}}")

    with pytest.raises(ImageStoreFailed, match=r"images\.yaml: (.|\n)*images\.worker\.startSecond"):
        ImageStore(file).get("worker")


def test_a_log_is_read_on_from_where_it_was_over_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"t1 stdout F one\nt2 stdout P tw")
    reader = LogReader(log)
    assert [line.render(False) for line in reader.read()] == [b"one\n"]

    with log.open("ab") as file:
        file.write(b"o\nt3 stderr F three\n")
    log.rename(tmp_path / "log.1")
    log.write_bytes(b"t4 stdout F four\n")

    assert [line.render(True) for line in reader.read()] == [b"t2 two", b"t3 three\n", b"t4 four\n"]
    assert list(reader.read()) == []
    assert [line.text for line in tail(LogReader(log).read(), 2)] == [b"three", b"four"]


def test_last_words_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"t stdout F line %d\n" % n for n in range(1000)))

    assert last_lines(log, 2048).splitlines()[-1] == "line 999"
    assert last_lines(log, 12) == "98\nline 999"[-11:]
    assert last_lines(tmp_path / "none", 100) == ""


def test_two_nodes_never_share_pod_addresses_and_one_finds_its_own_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POINTSMAN_CACHE", str(tmp_path / "cache"))
    one, other = PodAddresses(tmp_path / "one"), PodAddresses(tmp_path / "other")

    assert one.host_ip != other.host_ip
    assert PodAddresses(tmp_path / "one").host_ip == one.host_ip


def test_pod_addresses_run_out_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_CACHE", str(tmp_path / "cache"))
    addresses = PodAddresses(tmp_path / "one")
    taken = []
    with pytest.raises(NodeFailed, match="all 245 pod addresses of 127"):
        while True:
            taken.append(addresses.take())
    assert len(set(taken)) == len(taken)
    assert addresses.numbered(2) not in taken

    addresses.give_back(taken[7])

    assert addresses.take() == taken[7]
    assert addresses.take(addresses.numbered(2)) == addresses.numbered(2)
    with pytest.raises(NodeFailed, match=r"pod-ip is '10\.0\.0\.1': it must be one of 127"):
        addresses.take("10.0.0.1")
