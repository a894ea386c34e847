"""Servers, clients, faults and checkers in simulated worlds."""
