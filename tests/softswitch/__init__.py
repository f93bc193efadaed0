"""The softswitch from outside: how tests start the process, speak BF Runtime to it, and run its programs on single frames.

Nothing here imports the softswitch. A test that uses this package sees what a client and the network see, so it holds for any
implementation of the process: the one that SHUNT_SOFTSWITCH names, or the one of this checkout.

* `process`: the process, from its configuration file to its exit code.
* `client`: one BF Runtime session, and rows of any table of the served schema.
* `plane`: the relay tables, media ranges, filters and statistics.
* `replication`: the conference tables and the replication engine.
* `testrun`: a program in the kernel, run on one frame.
* `names`: what the schema and the configuration call things.
"""
