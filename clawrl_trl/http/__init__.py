"""HTTP servers within bounds: connections (`server`), bodies (`body`) and the counts in a request (`limits`).

Gateway, embedded engine and environment server share it. It imports no torch.
"""
