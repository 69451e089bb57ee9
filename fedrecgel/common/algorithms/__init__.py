"""Federated recommendation algorithms, one small file each."""
