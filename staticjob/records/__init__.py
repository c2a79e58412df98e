"""The records that cross from one step to the next, each stored as one JSON object.

`prepare` writes a `Prepared`, `tokenize` one `SplitStats` per split, `plan` a `Plan`,
`chunk` a `Progress` and a `Commit` per chunk, `merge` a `MergeCommit` per group and
`finish` a `Manifest`. Everything bulky (token ids, results) lies in binary objects
beside them; see `layout.py` for where.
"""
