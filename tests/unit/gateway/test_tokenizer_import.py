"""The tokenizer library is imported early, in a thread; a tokenizer that is wanted meanwhile still loads."""

import subprocess
import sys
from pathlib import Path

from fixtures.plain_tokenizer import make_tokenizer

RACE = """
import sys, threading
from pathlib import Path
from pointsman.gateway.processor import TextProcessor
preparing = [threading.Thread(target=TextProcessor.prepare) for _ in range(2)]
for thread in preparing:
    thread.start()
print(TextProcessor.load(Path(sys.argv[1])).encode("a") != [])
for thread in preparing:
    thread.join()
"""


def test_a_tokenizer_loads_while_the_library_is_being_imported_by_other_threads(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    done = subprocess.run([sys.executable, "-c", RACE, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr
