"""The traces of many ranks to their facts, one after the other or in several processes."""
