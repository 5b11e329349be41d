"""Translation of the Responses API and Anthropic's Messages API to chat completions and back.

`*_request` modules translate a request, `*_reply` modules a reply; `parts`, `fields` and `chat_messages` are shared by
them. Only `gateway.routes` uses this package.
"""
