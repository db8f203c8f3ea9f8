"""A wing: one model in parts, on several backends, or cut at the collectives of several ranks.

fallback.py         asks the candidates, part by part, until each part is with one that takes all
partitioning.py     the candidate of each node, as far as the candidates were asked
grouping.py         nodes that a backend takes only together, or in segments of some size
parts.py            compiles the parts, each through the compile cache, and makes one executable
part_options.py     CompileOptions of a part
partition_cache.py  a partition as files, so that the next build asks no backend and cuts nothing
"""
