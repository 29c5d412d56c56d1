"""An elastic group in simulated time. Beside the simulator of services: instances have no roles."""
