"""The ground of all other folders: settings, Kafka's options, records in Arrow, and what PySpark does not document."""
