"""Ranks that run one model together: what they share, and the collectives between them."""
