"""Encode workers get images and nothing else; prompts with images go where their prefix went before."""

from pointsman.api.protocol.names import Role
from pointsman.gateway.types import Discovered, Worker, WorkerKey
from unit.gateway.fleet_world import World


class ImageWorld(World):
    """Decode workers, and encode workers."""

    def __init__(self, decode: str, encode: str) -> None:
        self.encode = encode
        super().__init__(*decode)

    def discover(self, *names: str, prefill: str | None = None) -> None:
        decoding = [Worker(WorkerKey(name), name, f"http://{name}", Role.DECODE) for name in names]
        encoding = [Worker(WorkerKey(name), name, f"http://{name}", Role.ENCODE) for name in self.encode]
        self.fleet.apply(Discovered((*decoding, *encoding)))

    def encoder(self, image: str, tokens: int = 100, *, holder: str | None = None, avoid: str = "") -> str | None:
        """Who gets ``image``; it stays there."""
        pick = self.fleet.pick_encoder(
            image, tokens, holder=WorkerKey(holder) if holder else None, avoid={WorkerKey(name) for name in avoid}
        )
        return pick.worker.name if pick else None


def test_encode_workers_get_no_prompts_and_their_model_is_not_asked_for() -> None:
    world = ImageWorld("ab", "xy")
    assert world.reachable() == {"a", "b"}
    assert world.fleet.needs_model() == []
    assert world.fleet.has_encoders and not ImageWorld("ab", "").fleet.has_encoders
    assert {entry.role for entry in world.fleet.report("g").endpoints} == {Role.DECODE, Role.ENCODE}


def test_images_spread_by_load_and_count_as_in_flight_until_they_end() -> None:
    world = ImageWorld("a", "xyz")
    assert sorted(filter(None, (world.encoder("cat") for _ in range(6)))) == ["x", "x", "y", "y", "z", "z"]
    in_flight = {entry.worker: entry.in_flight for entry in world.fleet.report("g").endpoints}
    assert in_flight == {"a": 0, "x": 2, "y": 2, "z": 2}
    bounded = world.fleet.in_flight()
    assert (bounded.pending_tokens, bounded.decoding) == (0, 0), "flow control does not count them"


def test_a_worker_that_was_tried_or_ejected_or_left_gets_no_image() -> None:
    world = ImageWorld("a", "xy")
    assert {world.encoder(f"image {n}", avoid="x") for n in range(9)} == {"y"}
    world.fleet.failed(WorkerKey("y"), unreachable=True)
    assert world.encoder("cat", avoid="x") is None
    assert world.fleet.has_encoder(WorkerKey("x")) and not world.fleet.has_encoder(WorkerKey("y"))
    world.now_s += 2.1
    assert world.encoder("cat", avoid="x") == "y"
    world.fleet.answered(WorkerKey("y"))
    world.encode = "y"
    world.discover("a")
    assert world.encoder("cat", holder="x") == "y"
    assert not world.fleet.has_encoder(WorkerKey("x")) and not world.fleet.has_encoder(WorkerKey("a"))


def test_a_later_turn_goes_to_the_worker_of_the_earlier_one() -> None:
    world = ImageWorld("abcd", "")
    chains = [[100 * number + block for block in range(10)] for number in range(1, 9)]

    def turn(chain: list[int]) -> tuple[str, int]:
        pick = world.fleet.pick(prompt_tokens=4 * len(chain), chain=(), image_chain=chain, digest=None, avoid=set())
        assert pick is not None
        pick.entry.end()
        return pick.worker.name, pick.choice.chosen.overlap_tokens

    first = [turn(chain) for chain in chains]
    assert {overlap for _, overlap in first} == {0} and len({name for name, _ in first}) > 1
    assert [turn([*chain, chain[0] + 50, chain[0] + 51]) for chain in chains] == [(name, 40) for name, _ in first]
    leaves = first[0][0]
    world.discover(*(set("abcd") - {leaves}))
    assert turn(chains[0])[1] == 0, "what it held is forgotten with it"
