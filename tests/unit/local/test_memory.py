"""Memory is summed over the right processes, shared pages once."""

import mmap
import os
import subprocess
import sys

from pointsman.local.memory import PeakMemory, family, processes_with, pss_mib

CHILD = "import sys; print('up', flush=True); sys.stdin.read()"


def test_a_process_that_is_gone_has_no_memory_and_no_family() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert pss_mib(child.pid) is None
    assert family([child.pid]) == set()


def test_pss_grows_with_what_a_process_really_touches() -> None:
    before = pss_mib(os.getpid())
    with mmap.mmap(-1, 64 * 1024 * 1024) as block:
        for offset in range(0, len(block), mmap.PAGESIZE):
            block[offset] = 1
        after = pss_mib(os.getpid())
    assert before is not None
    assert after is not None
    assert 60 <= after - before <= 80


def test_descendants_and_marked_processes_are_found() -> None:
    marked = {**os.environ, "POINTSMAN_TEST_MARK": "one"}
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=-1, stdout=-1, env=marked) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert child.pid in family([os.getpid()])
        assert processes_with("POINTSMAN_TEST_MARK", "one") == {child.pid}
        assert processes_with("POINTSMAN_TEST_MARK", "on") == set()
        child.communicate()


def test_the_peak_is_the_largest_sum_seen() -> None:
    memory = PeakMemory()
    now = memory.sample([os.getpid()])
    assert memory.sample([]) == 0
    assert memory.peak_mib == now > 1
