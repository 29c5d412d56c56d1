"""The process of one elastic instance: a model replica that a manager tells what to compute.

``computer`` runs iterations in a thread, ``server`` talks to the manager, ``settings`` come from the pod.
"""
