"""Multimodal serving: what workers exchange for images beside KV."""
