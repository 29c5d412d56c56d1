"""How many instances an elastic group needs. Beside the core of services: instances have no roles."""
