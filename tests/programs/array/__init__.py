"""A covering array of features: every pair of them meets in some history, which the independent oracle follows.

`features` lists the features with their values and the pairs that cannot meet, `pairs` finds few rows that cover all
other pairs, `layout` gives a row's records, `history` its random input, and `play` runs it through the product and the
model of `tests/programs/oracle`.
"""
