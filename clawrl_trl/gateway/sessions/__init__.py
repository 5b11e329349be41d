"""Sessions: which conversation a request continues, and what it says about the replies before it.

The gateway uses `sessions.Sessions` and the values of `placement`; judge and command line use `reading` (messages as
the gateway reads them), `senders` and `clients` (the table of known clients' habits). Within the package, `identity`
finds ids, `kinds` tells main from side, `digest` makes the digests by which `match` finds a conversation in the
`index`.
"""
