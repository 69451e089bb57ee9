"""Measurements of speed and memory; see the README beside this file."""
