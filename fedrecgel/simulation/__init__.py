"""Runs in one process, and what is made of them: reports, plots, recommendations."""
