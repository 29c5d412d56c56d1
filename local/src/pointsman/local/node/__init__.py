"""The process node: a Kubernetes node that runs pods as local processes."""
