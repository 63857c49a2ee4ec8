"""One world by a seed: network, disks, crashes, pauses, growth, producers, consumers, live topics.

`script` draws a world and its steps from a seed, `world` runs them on real nodes in virtual time
and writes a `history`, `checker` reads the history alone, `shrink` makes a failing script short.
"""
