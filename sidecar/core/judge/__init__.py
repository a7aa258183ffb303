"""Evidence → verdict: R1-R10, wave by wave, and which wave is wanted next."""
