"""One run over several processes and machines (`torchrun`, `srun`, `processes=4`)."""
