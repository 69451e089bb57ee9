"""A node: its users, their private state, training and evaluation."""
