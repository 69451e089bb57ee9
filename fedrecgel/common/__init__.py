"""What server and nodes share: algorithms, scorers, data, metrics, messages."""
