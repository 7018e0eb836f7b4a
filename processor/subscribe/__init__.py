"""The subscription engine: what each of many subscribers is told of one topic. It knows nothing of Kafka or sockets.

README.md beside this file has the picture.
"""
