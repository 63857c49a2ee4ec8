"""Traffic generators: example load that is switched on and off."""
