"""Growth: what claims cost when a table has grown, and when others are at it.

python -m benchmarks.growth --engine postgresql --done 1000,100000,1000000,5000000

* The latency of claim and finish, by rows already done and by backlog, in one table that
  grows. A small one beside it, which stays as it began, is measured in turn with it: the
  ratio of the two holds also where the machine has slow minutes.
* The same while somebody keeps an old snapshot open.
* The rate over the course of one drain, with and without such a snapshot.
* Producers and consumers at once: latencies, and which errors the engine gave.
"""
