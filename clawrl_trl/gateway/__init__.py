"""The OpenAI-compatible gateway: forwards requests to the engine and records every reply turn by turn.

`python -m clawrl_trl.gateway --run DIR` runs it, `app.make_app` is the ASGI app. `routes` holds the HTTP routes,
`translate` the other APIs (Responses, Anthropic Messages) as chat completions, `sessions` which conversation a request
belongs to; `exchange` is one request on its way, `record` what it leaves in the ledger. It imports no torch.
"""
