"""The server: rounds, acceptance of replies, the run folder."""
