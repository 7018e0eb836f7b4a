"""The gateway: topics for browsers and other thin clients, over WebSocket, Server-Sent Events and HTTP.

The rules are those of spec gateway.md.

::

    SOW topic ──▶ KafkaFeed (a thread) ──▶ Engine, view, history ──▶ Session ──▶ WebSocket, Server-Sent Events
                  feeds/                   processor.subscriptions   sessions/   websocket, endpoints
    token ──▶ Authenticator ──▶ Identity ──▶ Entitlements ──▶ Rights    access/
    publish ──▶ Publishing ──▶ processor.client                         commands/

`Gateway` (gateway.py) owns the feeds, the rights and the sessions; `application.py` makes it a web application, and
`server.py` runs that. Everything but the reading of Kafka runs on one event loop. `web/` has the JavaScript client and
the page; it needs no build.
"""
