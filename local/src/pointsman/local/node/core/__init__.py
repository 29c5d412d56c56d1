"""What the node decides, without doing it: environments, what it cannot run, status, restarts, probe counting."""
