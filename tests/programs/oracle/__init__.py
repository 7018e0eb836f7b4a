"""An independent model of the product, written from the specification alone.

It shares no code with the product, which `test_oracle.py` checks: parsers, merging, rules, keys, filters, select lists,
conflation and subscriptions are written a second time here, for clarity and never for speed. Only the third-party
library of a message type (msgpack, bson, fastavro) is used on both sides. Section names such as "Merging a delta" are
those of the specification: `merge.md`, `producers.md`, `conflation.md`, `subscribe.md`, `filter.md`.

In reading order: `values` and `numbers`; `exact_json`, `formats`, `text_formats`, `avro_format` (message types);
`merging`, `rules`, `keys` (the effects of a command on a record); `topic` (the SOW topic); `conflated`; `filters`,
`select`, `subscriber`.
"""
