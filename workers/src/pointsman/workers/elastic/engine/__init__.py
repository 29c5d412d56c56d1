"""The elastic engine: a Llama forward whose tokens and KV lie on as many instances as an iteration has.

``architecture`` and ``weights`` read a model, ``model`` computes what needs no other token, ``attention`` the rest for
the KV at hand, ``kv_pool`` keeps it, ``groups`` joins processes, and ``instance`` runs an iteration's part.
"""
