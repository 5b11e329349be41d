"""Verdicts: what the next state says about a reply, as a score, and as a hint for the teacher.

The judge is a process of its own that meets the others only in the ledger: it claims turns whose next state is
known, and writes verdict and sample in one transaction. Nothing here is on the way of a chat.
"""
