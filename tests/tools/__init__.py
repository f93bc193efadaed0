"""Tools of more than one test: the tests' own client of BF Runtime, and entries of a data plane."""
