"""Random lives of keys while what merges them is killed, and the check that no version of a key comes twice."""
