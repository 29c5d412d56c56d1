"""Pure arithmetic of serving that several rooms need. No I/O, no clock."""
