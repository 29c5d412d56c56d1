"""Which layout is chosen, by switches and scaling, and why not another."""
