"""The process of one elastic instance: a model replica that a manager tells what to compute.

``computer`` runs iterations in a thread, ``server`` talks to the manager, ``settings`` come from the pod. A model on
several GPUs is cut in ``shard``s: the first is the instance's own, ``shard_processes`` are the others.
"""
