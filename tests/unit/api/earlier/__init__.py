"""The wire types of commit 055ea15, copied and never edited: what workers and gateways of that version read and write.

``test_mixed_versions.py`` compares the present ones with them.
"""
