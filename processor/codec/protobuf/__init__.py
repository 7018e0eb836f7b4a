"""Protocol Buffers: messages parsed by a descriptor set."""
