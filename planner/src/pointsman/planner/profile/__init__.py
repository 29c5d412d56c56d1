"""``pointsman profile``: measures a live worker and writes a performance table."""
