"""Recommendations at a site: a gRPC service over the published model and the private store."""
