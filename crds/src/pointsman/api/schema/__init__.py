"""From the models to what users install and read: structural schemas, CRD manifests, the API reference.

``rules``       CEL rules, bounds and reserved fields, written beside the models
``structural``  a pydantic model as a structural schema; refuses what Kubernetes would refuse
``manifest``    a kind as a CustomResourceDefinition
``reference``   the kinds as Markdown

``python -m pointsman.api.schema`` writes all of it (``make crds``).
"""
