"""One fair comparison of several algorithms: equal budgets of trials, then seeds, one table.

A comparison is made of *cells*: one trial, one seed or one reference on one data set. Every cell is
found again by a hash of everything that decides its numbers, so nothing is ever computed twice.
"""
