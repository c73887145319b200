"""Several ranks as one job: match their collectives, divide waiting from transfer, find whom the others wait for."""
