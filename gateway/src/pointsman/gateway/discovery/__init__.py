"""Where the workers are: from the Kubernetes API by pod labels, or from a static file."""
