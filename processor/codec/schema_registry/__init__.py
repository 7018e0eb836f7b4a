"""A schema registry, by Confluent's client: schemas by id, and the schema in which a topic's records are kept."""
