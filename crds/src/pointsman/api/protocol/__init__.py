"""Every wire type and name that rooms share. A room imports the module it needs, by name.

``names``      labels, annotations, ports, environment variables, NATS subjects
``headers``    HTTP headers between gateway and worker
``control``    the worker's control API and the gateway's report, as models
``resume``     a broken stream on its way to the worker that resumes it
``prefill``    PrefillRequest and PrefillReply on the prefill queue
``kv``         KV metrics and the block-hash convention
``metrics``    names of the Prometheus metrics
"""
