"""Times of iterations from a few numbers, as ``status.latencyModel`` of a group and a plan's inputs have them."""

from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.requests import MemberLoad


@dataclass(frozen=True, slots=True)
class LinearTimes:
    """Prefills take what ``prefills`` says, of each degree that forms.

    A decode step takes ``step_s``, ``step_s_per_request`` for each request of the member with the most, and
    ``member_s`` for each further member. A hand-over takes ``move_s_per_token`` for each token.
    """

    prefills: LatencyModel
    step_s: float
    step_s_per_request: float
    member_s: float
    move_s_per_token: float

    def prefill_s(self, members: int, lengths: Sequence[int]) -> float:
        """See Times."""
        return self.prefills.prefill_time(members).seconds(sum(lengths), sum(each * each for each in lengths))

    def decode_s(self, loads: Sequence[MemberLoad]) -> float:
        """See Times."""
        most = max(each.requests for each in loads)
        return self.step_s + self.step_s_per_request * most + self.member_s * (len(loads) - 1)

    def move_s(self, tokens: int) -> float:
        """See Times."""
        return self.move_s_per_token * tokens
