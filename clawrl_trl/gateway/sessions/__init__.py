"""Sessions: which conversation a request continues, and what it says about the replies before it.

Other packages use `sessions.Sessions`, `placement.Incoming` and `placement.Placement`. `reading` reads the messages,
`clients` is the table of known clients' habits, `digest` the digests by which a conversation is recognised, `match`
finds it in the `index`.
"""
