"""Deployment over Flower's SuperLink and SuperNodes: certificates, sites' files, processes."""
