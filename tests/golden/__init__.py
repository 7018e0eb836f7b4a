"""The bytes that a released version writes, kept in files, and the tests that hold later versions to them."""
