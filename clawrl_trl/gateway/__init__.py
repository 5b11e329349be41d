"""The HTTP gateway: forwards requests to the engine and records every reply as a turn of the ledger.

`python -m clawrl_trl.gateway --run DIR` runs it; `app.make_app` is the ASGI app. `routes` holds the HTTP routes,
`translate` other APIs (Responses, Anthropic Messages) as chat completions, `sessions` which session a request belongs
to; `exchange` is one request on its way, `record` what it leaves in the ledger. It imports no torch.

Other packages use `capture`, `probe` and `sampling` (what of a reply can be trained on), `auth` and `errors` (keys and
error shapes, for other HTTP servers), and `sessions`.
"""
