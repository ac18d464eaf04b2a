"""Parts that encoders are composed of: towers, backbones, poolings, activations, sparsifiers."""
