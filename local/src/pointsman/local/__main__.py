"""``python -m pointsman.local`` is ``pointsman local``."""

import sys

from pointsman.local.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
