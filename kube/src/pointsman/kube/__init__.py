"""Thin Kubernetes access, shared by operator, gateway, planner and the local cluster.

``resources``  the kinds we use, and their paths
``client``     the API server's verbs, with plain dict bodies and typed errors (``errors``)
``request``    one request: its timeout, its record, its failure as Unreachable, reads tried again
``transport``  where the cluster is and who we are there; credentials that age
``mirror``     a local copy of a collection that converges to the truth, whatever happens to list and watch
``objects``    base of the slim models a mirror holds; ``pods`` is the slim pod
``lease``      leader election: at most one leads
``events``     Kubernetes Events, deduplicated and limited
``permissions`` RBAC rules as data
"""
