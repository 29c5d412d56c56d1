"""A worker that fails is left alone, longer each time, and comes back by trial."""

from pointsman.serving.ejection import FAILURES_IN_A_ROW, EjectionRule, Health

RULE = EjectionRule(base_s=2.0, max_s=7.0)


def fail(health: Health, now_s: float, times: int = 1, *, unreachable: bool = False) -> list[bool]:
    return [RULE.failed(health, now_s, unreachable=unreachable) for _ in range(times)]


def test_one_failed_connection_or_five_failures_in_a_row_eject() -> None:
    health = Health()
    assert fail(health, 0.0, FAILURES_IN_A_ROW - 1) == [False] * (FAILURES_IN_A_ROW - 1)
    RULE.answered(health, 0.0)
    assert fail(health, 0.0, FAILURES_IN_A_ROW) == [False] * (FAILURES_IN_A_ROW - 1) + [True]
    assert health.avoided(1.9)
    assert not health.avoided(2.0)
    assert fail(Health(), 0.0, unreachable=True) == [True]


def test_each_further_ejection_is_longer_up_to_the_most_and_an_answer_takes_one_back() -> None:
    health, now_s, lengths = Health(), 0.0, []
    for _ in range(5):
        RULE.chosen(health, now_s)
        assert fail(health, now_s, unreachable=True) == [True]
        lengths.append(health.avoided_until_s - now_s)
        now_s = health.avoided_until_s
    assert lengths == [2.0, 4.0, 6.0, 7.0, 7.0]
    RULE.answered(health, now_s)
    assert (health.ejections, health.avoided(now_s)) == (4, False)
    assert fail(health, now_s) == [True], "one failure is enough while ejections are left"


def test_failures_of_requests_that_were_there_before_the_ejection_change_nothing() -> None:
    health = Health()
    fail(health, 0.0, unreachable=True)
    assert fail(health, 1.0, 10, unreachable=True) == [False] * 10
    assert (health.ejections, health.avoided_until_s) == (1, 2.0)


def test_answers_to_requests_that_were_there_before_the_ejection_change_nothing() -> None:
    health = Health()
    fail(health, 0.0, FAILURES_IN_A_ROW)
    RULE.answered(health, 1.0)
    assert (health.ejections, health.avoided_until_s) == (1, 2.0)


def test_after_its_time_one_request_is_the_trial_and_others_wait_for_its_outcome() -> None:
    health = Health()
    fail(health, 0.0, unreachable=True)
    assert not health.avoided(2.5)
    RULE.chosen(health, 2.5)
    assert health.avoided(2.6), "the trial is under way"
    assert fail(health, 3.0) == [True]
    assert health.avoided_until_s == 7.0
    RULE.chosen(health, 7.0)
    RULE.answered(health, 7.05)
    assert not health.avoided(7.1)
