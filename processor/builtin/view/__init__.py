"""Views: topics computed from other topics and kept up to date (spec views.md).

`Split` reads the records of one topic, and sends of each the part that its group needs to the partition of that group;
`Aggregate` keeps these parts as a table, and writes the rows. `Projection` writes a row for each record. A join has
splits on both sides, `Join` where equal keys meet, and `Rows`.

Three rules make a view exact:

- Between the stages go states, never differences, under a key of group and member. A part that comes twice or late
  changes nothing.
- A row is a function of the members that its group has in the table.
- A stage computes all rows when it begins, and writes those that differ from the SOW topic.
"""
