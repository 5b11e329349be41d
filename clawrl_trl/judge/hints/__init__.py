"""Hints: what the owner's later words would have asked for, had they come in time.

`extraction` takes them from the owner's words, `template` puts one into the teacher's prompt, and `choice` picks the
best of several candidates by what the teacher makes of them.
"""
