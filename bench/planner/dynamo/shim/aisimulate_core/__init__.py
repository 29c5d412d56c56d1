"""Stands in for a package that is not on the public index; see ``sdk``."""
