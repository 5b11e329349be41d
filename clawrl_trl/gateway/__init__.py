"""The HTTP gateway: forwards requests to the engine and records every reply as a turn of the ledger.

`python -m clawrl_trl.gateway --run DIR` runs it; `app.make_app` is the ASGI app. `routes` holds the HTTP routes,
`translate` other APIs (Responses, Anthropic Messages) as chat completions, `sessions` which session a request belongs
to. It imports no torch.

Other packages use `capture`, `probe` and `sampling` (what of a reply can be trained on), `auth` and `errors` (keys and
error shapes, for other HTTP servers), and `sessions`.

A chat request goes from its route to the ledger through eight modules, and no object is built twice on the way:

1. `routes.chat` takes it from HTTP and waits for the answer;
2. `admission` checks its key, its body and its media, and builds the one `IncomingRequest`;
3. `sessions.incoming` is what that is, and reads its messages once;
4. `exchange` carries it out, from placing to the last event;
5. `sessions.sessions` places it: session, main or side, the turns it answers;
6. `upstream` sends it to the engine as bytes (over `engines.client`), patiently while the client has seen nothing;
7. `record` makes its rows, when the reply is complete;
8. `ledger.turns` stores them (with `ledger.schema` and `ledger.states` behind it, as for every row).

Each asks others about a part, which see that part alone: admission `auth`, `body`, `requests` and `media`; the
exchange `wire`, `sampling` and `policies`; the sessions `reading`, `digest` and `match`. The reply comes back as
events through `upstream` and `capture`. `tests/gateway/test_gateway_path.py` follows a chat and holds the list.
"""
