"""`make quickstart`: the main job on real parts, explained while it runs."""
