"""How vLLM reports that its engine core died: the process that computes, beside the one that answers HTTP."""


def reports_engine_death(text: str) -> bool:
    """Whether an engine's error says so. vLLM answers its last requests with an error that names it."""
    return "EngineDead" in text or "EngineCore" in text
