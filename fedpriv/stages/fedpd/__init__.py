"""FedPD: privacy distillation before round 0, and the shared features it makes (conf stage=fedpd)."""
