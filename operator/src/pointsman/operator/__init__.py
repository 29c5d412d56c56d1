"""The operator: makes the cluster match each LLMService."""
