"""Every sentence of the operator's core: functions from typed facts to text, by what they are about.

``reasons`` of actions (log), ``outcomes`` of actions (Events), ``switches``, ``plans``, ``status`` (conditions),
``kv``, ``gateways``, ``groups`` (elastic groups) and ``specs`` (refused fields). `docs/reference/style.md` has the
rules; ``make messages`` renders all of them with example facts.
"""
