"""What comes: arrivals and their forecast, lengths of requests, what of them is cached."""
