"""What should be, and what to do about it: pure functions from one frozen snapshot to actions and status.

No I/O, no asyncio, no clock (``Snapshot.now_s`` is the time), no Kubernetes client: an import contract holds it so.

======================= ==============================================================================================
``snapshot``            everything known about one service at one moment
``desired``             how many workers each pool should have, what is refused
``actions``             the typed things the shell can do, each with its ``why``
``diff``                snapshot -> ordered, bounded list of actions (asks those below)
``roles``               which worker gets which role, is verified with whom, becomes routable
``drain``               who goes first, and when a leaving worker may be deleted
``deletion``            the end of a service
``switching``           role switches, step by step
``plans``               what a Plan asks for: routing, then switches, then replicas
``status``              conditions, counts, summary
``naming``, ``revision``  names; what makes a worker different
``gateway``, ``children``  manifests of the objects beside the workers
``worker_pod``          a worker's pod, whatever its engine; the user's template over it (``strategic_merge``)
``adapters``            one module per engine: how it is started, what its KV depends on
``install``             what the chart was installed with
======================= ==============================================================================================
"""
