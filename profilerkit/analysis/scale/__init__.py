"""Compare thousands of ranks: match their collectives, find the culprits, and choose which to show in detail."""
