"""Every text that a user reads, found in the code and not in a list: ``make messages`` prints them.

``found`` finds them, ``examples`` calls the message functions with typed facts, ``style`` has the rules of
``docs/reference/style.md``. The test is ``tests/unit/test_messages.py``.
"""
