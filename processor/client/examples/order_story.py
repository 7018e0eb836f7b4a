"""Three services work on one order independently: a filter shows each of them an order while it has work to do.

An order is published as new. The stock service and the credit service both wait for new orders without their field, and
each adds its own field. The fulfilment service waits for orders with both fields, and gets each of them once, in full.
An order that a service has finished goes out of its focus by itself.

Settings: a topic `orders` with the key `/id`. With `sowstream worker` running, start each in a terminal of its own::

    python -m processor.client.examples.order_story inventory
    python -m processor.client.examples.order_story credit
    python -m processor.client.examples.order_story fulfilment
    echo '{"id":1,"customer":"c1","item":"bolt","qty":5,"state":"new"}' | sowstream publish orders --command publish

Each prints the messages that it receives, one per line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sowstream import Client, load

NEW: Final = "/state = 'new' AND /inventory IS NULL AND /credit IS NULL"
READY: Final = "/state = 'new' AND /inventory IS NOT NULL AND /credit IS NOT NULL"

Order = dict[str, Any]


def inventory(order: Order) -> Order:
    """Set the goods aside."""
    return {"inventory": f"{order['qty']} of {order['item']} set aside"}


def credit(order: Order) -> Order:
    """Ask whether the customer can pay."""
    return {"credit": f"{order['customer']} is good for it"}


def fulfilment(order: Order) -> Order:  # noqa: ARG001 - a real one would need it
    """Send the goods."""
    return {"state": "sent"}


SERVICES: Final[dict[str, tuple[str, Callable[[Order], Order]]]] = {
    "inventory": (NEW, inventory),
    "credit": (NEW, credit),
    "fulfilment": (READY, fulfilment),
}
"""For each service, the filter of its orders, and the function that computes the fields to add."""


def serve(client: Client, topic: str, service: str) -> None:
    """Work on every order that comes into focus, until Ctrl-C."""
    order_filter, work = SERVICES[service]
    for message in client.sow_and_subscribe(topic, order_filter, "oof"):
        print(message.to_json(), flush=True)
        if message.command in ("sow", "publish"):
            # A delta: it does not overwrite fields that other services write at the same time.
            client.delta_publish(topic, {"id": message.data["id"], **work(message.data)})


def main() -> None:
    """Be one of the services."""
    parser = argparse.ArgumentParser(description="One of the services of the order story.")
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--config", type=Path, help="settings; ./sowstream.yaml without it")
    arguments = parser.parse_args()
    with Client(arguments.service, load(arguments.config)) as client:
        try:
            serve(client, arguments.topic, arguments.service)
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
